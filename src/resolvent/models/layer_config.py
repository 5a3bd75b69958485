"""One settings dataclass per kind of sequence layer; field names are the layer's own keyword arguments.

A new layer needs its dataclass, its name in `__all__`, and its rows in `LayerConfig` and `LAYERS`; `build_model`,
`--layer` and saved files then support it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from resolvent.blocks.gru import GRU
from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Layer, ScalarS6, ShortConv
from resolvent.models.settings import Settings

__all__ = [
    "DSSConfig", "EMAConfig", "GRUConfig", "L2RUConfig", "LRUConfig", "NormalisedLRUConfig", "RGLRUConfig", "S4Config",
    "S4DConfig", "S5Config", "S6Config", "ScalarS6Config", "ShortConvConfig",
]  # fmt: skip

Discretisation = Literal["zoh", "bilinear"]


@dataclass(frozen=True)
class S4Config(Settings):
    """Settings of an S4 layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.S4Config(16, init="legs").init
        'legs'
    """

    d_state: int = 64
    init: Literal["legs", "lagt", "fout"] = "legs"
    n_ssm: int = 1
    rank: int = 1
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    discretisation: Discretisation = "bilinear"
    bidirectional: bool = False


@dataclass(frozen=True)
class S4DConfig(Settings):
    """Settings of an S4D layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.S4DConfig(16, init="ptd").init
        'ptd'
    """

    d_state: int = 64
    init: Literal["legs", "lin", "inv", "real", "ptd"] = "legs"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    discretisation: Discretisation = "zoh"
    bidirectional: bool = False
    skip: bool = True
    perturbation: float | None = None


@dataclass(frozen=True)
class DSSConfig(Settings):
    """Settings of a DSS layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.DSSConfig(16, kernel="softmax").kernel
        'softmax'
    """

    d_state: int = 64
    kernel: Literal["exp", "softmax"] = "exp"
    length: int | None = None
    separate_dt: bool = True
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    bidirectional: bool = False
    init: Literal["legs", "ptd"] = "legs"


@dataclass(frozen=True)
class S5Config(Settings):
    """Settings of an S5 layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.S5Config(16, blocks=2).blocks
        2
    """

    d_state: int = 64
    blocks: int = 1
    conjugate: bool = True
    discretisation: Discretisation = "zoh"
    c_init: Literal["lecun", "complex_normal"] = "lecun"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    clip: bool = True
    bidirectional: bool = False
    init: Literal["legs", "ptd"] = "legs"
    perturbation: float | None = None


@dataclass(frozen=True)
class LRUConfig(Settings):
    """Settings of an LRU layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.LRUConfig(16, r_min=0.9).r_min
        0.9
    """

    d_state: int = 64
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * math.pi
    bidirectional: bool = False


@dataclass(frozen=True)
class L2RUConfig(Settings):
    """`gamma` is the prescribed gain, or its initial value; r_min, r_max, max_phase None: the form's defaults.

    Examples:
        >>> rv.models.L2RUConfig(gamma=0.5).gamma
        0.5
    """

    d_state: int | None = None
    gamma: float = 1.0
    trainable_gamma: bool = False
    form: Literal["complete", "contraction", "diagonal", "dense"] = "diagonal"
    r_min: float | None = None
    r_max: float | None = None
    max_phase: float | None = None


@dataclass(frozen=True)
class NormalisedLRUConfig(Settings):
    """An LRU whose output is scaled to a gain of at most `gamma`, trained from that value if asked.

    Examples:
        >>> rv.models.NormalisedLRUConfig(gamma=0.5).gamma
        0.5
    """

    d_state: int = 16
    gamma: float = 1.0
    trainable_gamma: bool = False
    r_min: float = 0.0
    r_max: float = 0.99
    max_phase: float = 2 * math.pi


@dataclass(frozen=True)
class EMAConfig(Settings):
    """Settings of a damped EMA layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.EMAConfig(8).d_state
        8
    """

    d_state: int = 16
    bidirectional: bool = False


@dataclass(frozen=True)
class S6Config(Settings):
    """`dt_rank` "auto": ceil(d_model / 16).

    Examples:
        >>> rv.models.S6Config(8).d_state
        8
    """

    d_state: int = 16
    dt_rank: int | Literal["auto"] = "auto"
    dt_min: float = 1e-3
    dt_max: float = 0.1
    bidirectional: bool = False


@dataclass(frozen=True)
class ScalarS6Config(Settings):
    """Settings of a selective layer with a scalar step; the fields are its keyword arguments.

    Examples:
        >>> rv.models.ScalarS6Config(4).d_state
        4
    """

    d_state: int = 4
    abscissa: float = 0.0
    fixed_A: bool = False
    bidirectional: bool = False


@dataclass(frozen=True)
class RGLRUConfig(Settings):
    """Settings of an RG-LRU layer; the fields are its keyword arguments.

    Examples:
        >>> rv.models.RGLRUConfig(heads=2).heads
        2
    """

    heads: int = 1
    convention: Literal["code", "paper"] = "code"
    bidirectional: bool = False


@dataclass(frozen=True)
class ShortConvConfig(Settings):
    """A convolution of each channel with `width` taps; with a channel-mixing mixer, a small CNN.

    Examples:
        >>> rv.models.ShortConvConfig(width=3).width
        3
    """

    width: int = 4
    bias: bool = True
    bidirectional: bool = False


@dataclass(frozen=True)
class GRUConfig(Settings):
    """`width` > 1: a causal convolution of that many taps before the unit, as in Mamba and Hawk.

    Examples:
        >>> rv.models.GRUConfig(width=4).width
        4
    """

    width: int = 1


LayerConfig = (
    S4Config | S4DConfig | DSSConfig | S5Config | LRUConfig | L2RUConfig | EMAConfig | S6Config | ScalarS6Config |
    RGLRUConfig | ShortConvConfig | GRUConfig
)  # fmt: skip
LAYERS: dict[type, type[Layer]] = {
    S4Config: S4, S4DConfig: S4D, DSSConfig: DSS, S5Config: S5, LRUConfig: LRU, L2RUConfig: L2RU, EMAConfig: EMA,
    S6Config: S6, ScalarS6Config: ScalarS6, RGLRUConfig: RGLRU, ShortConvConfig: ShortConv, GRUConfig: GRU,
}  # fmt: skip
