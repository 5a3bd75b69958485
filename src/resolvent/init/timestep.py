"""Time steps dt of continuous-time layers: initialisation and positivity.

S4, S4D, DSS and S5 draw dt log-uniformly from [dt_min, dt_max], one per channel (or per state), and train log dt.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from resolvent.ssm.discretise import LOG_DT_HIGH, LOG_DT_LOW, positive

__all__ = ["DT_MAX", "DT_MIN", "LOG_DT_HIGH", "LOG_DT_LOW", "check_range", "log_uniform", "positive", "time_scales"]

DT_MIN = 1e-3
DT_MAX = 1e-1


def check_range(where: str, dt_min: float, dt_max: float) -> None:
    """0 < dt_min <= dt_max < infinity, or a ValueError naming the layer."""
    if not (0.0 < dt_min <= dt_max < math.inf):
        raise ValueError(
            f"{where}: expected 0 < dt_min <= dt_max, got dt_min={dt_min} and dt_max={dt_max}; "
            f"the papers use dt_min={DT_MIN}, dt_max={DT_MAX}."
        )


def log_uniform(
    shape: tuple[int, ...],
    dt_min: float = DT_MIN,
    dt_max: float = DT_MAX,
    *,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log dt ~ U(log dt_min, log dt_max) of the given shape."""
    check_range("log_uniform", dt_min, dt_max)
    low, high = math.log(dt_min), math.log(dt_max)
    return torch.rand(shape, dtype=dtype, generator=generator) * (high - low) + low


def time_scales(kind: Any, length: int) -> dict[str, float]:
    """Steps dt for memories from two steps to the whole sequence, if the layer has that option."""
    own = {f.name for f in fields(kind)}
    return {"dt_min": min(0.01, 0.64 / length), "dt_max": min(0.5, 64 / length)} if {"dt_min", "dt_max"} <= own else {}
