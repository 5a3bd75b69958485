"""Sequence layers (b, l, d) -> (b, l, d) behind one contract: see `resolvent.layers.contract`."""

from resolvent.layers.attention import Attention
from resolvent.layers.contract import Layer, Spec, State, frozen
from resolvent.layers.dss import DSS
from resolvent.layers.ema import EMA
from resolvent.layers.l2ru.layer import L2RU
from resolvent.layers.lru import LRU
from resolvent.layers.recorded import forget_recordings, without_recording
from resolvent.layers.rglru import RGLRU
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.layers.s5 import S5
from resolvent.layers.s6 import S6
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.layers.shortconv import ShortConv

__all__ = [
    "DSS", "EMA", "L2RU", "LRU", "RGLRU", "S4", "S4D", "S5", "S6", "Attention", "Layer", "ScalarS6", "ShortConv",
    "Spec", "State", "forget_recordings", "frozen", "without_recording",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
