"""Time steps that fit a length."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def time_scales(kind: Any, length: int) -> dict[str, float]:
    """Steps dt for memories from two steps to the whole sequence, where the layer has such a choice."""
    own = {f.name for f in fields(kind)}
    return {"dt_min": min(0.01, 0.64 / length), "dt_max": min(0.5, 64 / length)} if {"dt_min", "dt_max"} <= own else {}
