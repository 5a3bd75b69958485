"""One settings dataclass for each kind of sequence layer; field names are the layer's own keyword arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from resolvent.models.settings import Settings

Discretisation = Literal["zoh", "bilinear"]


@dataclass(frozen=True)
class S4Config(Settings):
    d_state: int = 64
    init: Literal["legs", "lagt", "fout"] = "legs"
    n_ssm: int = 1
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    discretisation: Discretisation = "bilinear"
    bidirectional: bool = False


@dataclass(frozen=True)
class S4DConfig(Settings):
    d_state: int = 64
    init: Literal["legs", "lin", "inv", "real", "ptd"] = "legs"
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    discretisation: Discretisation = "zoh"
    bidirectional: bool = False
    skip: bool = True


@dataclass(frozen=True)
class DSSConfig(Settings):
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


@dataclass(frozen=True)
class LRUConfig(Settings):
    d_state: int = 64
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * math.pi
    bidirectional: bool = False


@dataclass(frozen=True)
class L2RUConfig(Settings):
    """`gamma` is the prescribed gain, or where a trained one starts; r_min, r_max, max_phase None: the form's own."""

    d_state: int | None = None
    gamma: float = 1.0
    trainable_gamma: bool = False
    form: Literal["complete", "contraction", "diagonal"] = "diagonal"
    r_min: float | None = None
    r_max: float | None = None
    max_phase: float | None = None


@dataclass(frozen=True)
class NormalisedLRUConfig(Settings):
    """An LRU whose output is scaled to a gain of at most `gamma`, or of one that is trained from there."""

    d_state: int = 16
    gamma: float = 1.0
    trainable_gamma: bool = False
    r_min: float = 0.0
    r_max: float = 0.99
    max_phase: float = 2 * math.pi


@dataclass(frozen=True)
class EMAConfig(Settings):
    d_state: int = 16
    bidirectional: bool = False


@dataclass(frozen=True)
class S6Config(Settings):
    d_state: int = 16
    dt_min: float = 1e-3
    dt_max: float = 0.1
    bidirectional: bool = False


@dataclass(frozen=True)
class ScalarS6Config(Settings):
    d_state: int = 4
    abscissa: float = 0.0
    fixed_A: bool = False
    bidirectional: bool = False


@dataclass(frozen=True)
class RGLRUConfig(Settings):
    heads: int = 1
    convention: Literal["code", "paper"] = "code"
    bidirectional: bool = False


LayerConfig = (
    S4Config
    | S4DConfig
    | DSSConfig
    | S5Config
    | LRUConfig
    | L2RUConfig
    | EMAConfig
    | S6Config
    | ScalarS6Config
    | RGLRUConfig
)
