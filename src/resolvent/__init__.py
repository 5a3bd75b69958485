"""Resolvent: state-space sequence models that stay steady.

    import resolvent as rv
    layer = rv.S4D(d_model=64)
    y, state = layer(x)                # x (batch, length, 64); state carries on to the next chunk

Names are loaded when they are first used, so the import itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PARTS = (
    "analysis",
    "attacks",
    "blocks",
    "conformance",
    "data",
    "init",
    "layers",
    "models",
    "scan",
    "ssm",
    "training",
)
_HOME = {
    "Attention": "layers",
    "DSS": "layers",
    "EMA": "layers",
    "L2RU": "layers",
    "LRU": "layers",
    "ModelConfig": "models",
    "RGLRU": "layers",
    "S4": "layers",
    "S4D": "layers",
    "S5": "layers",
    "S6": "layers",
    "ShortConv": "layers",
    "System": "ssm",
    "Threat": "attacks",
    "autoattack": "attacks",
    "build_model": "models",
    "fit": "training",
    "frozen": "layers",
    "gated_scan": "scan",
    "linear_scan": "scan",
    "load_task": "data",
    "packed_starts": "scan",
    "selective_scan": "scan",
}

__all__ = [
    "DSS",
    "EMA",
    "L2RU",
    "LRU",
    "RGLRU",
    "S4",
    "S4D",
    "S5",
    "S6",
    "Attention",
    "ModelConfig",
    "ShortConv",
    "System",
    "Threat",
    "__version__",
    "analysis",
    "attacks",
    "autoattack",
    "blocks",
    "build_model",
    "conformance",
    "data",
    "fit",
    "frozen",
    "gated_scan",
    "init",
    "layers",
    "linear_scan",
    "load_task",
    "models",
    "packed_starts",
    "scan",
    "selective_scan",
    "ssm",
    "training",
]

if TYPE_CHECKING:
    from resolvent import analysis, attacks, blocks, conformance, data, init, layers, models, scan, ssm, training
    from resolvent.attacks import Threat, autoattack
    from resolvent.data import load_task
    from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Attention, ShortConv, frozen
    from resolvent.models import ModelConfig, build_model
    from resolvent.scan import gated_scan, linear_scan, packed_starts, selective_scan
    from resolvent.ssm import System
    from resolvent.training import fit


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"resolvent.{name}")
    if name in _HOME:
        return getattr(import_module(f"resolvent.{_HOME[name]}"), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
