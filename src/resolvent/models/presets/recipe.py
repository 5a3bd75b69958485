"""A published model's training settings, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resolvent.models.settings import Settings


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Length in `epochs`, or in `steps` where the paper counts updates; warm-up in the same unit.

    ssm_lr   learning rate of the state-space parameters; None: the same as the rest
    groups   whether the layers' own groups (no weight decay on dynamics) are used; False: one group for all

    Examples:
        >>> rv.models.TrainConfig(lr=1e-3, weight_decay=0.0, batch=32, epochs=5).batch
        32
    """

    lr: float
    weight_decay: float
    batch: int
    epochs: int | None = None
    steps: int | None = None
    warmup: int = 0
    ssm_lr: float | None = None
    groups: bool = True
    optimiser: Literal["adamw", "adam"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["cosine", "linear", "plateau", "none"] = "cosine"
    clip: float | None = None
