"""Walkers of FAB, and slopes for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.attacks import Threat
from resolvent.attacks.fab.walk import Pace, Walk

SIZES = [(5, 3, 33), (1, 1, 1), (4, 1, 8), (3, 8, 225)]
BOUNDS = ["none", "scalar", "feature", "sample", "one low", "one high"]
PACE = Pace(alpha_max=0.3, eta=1.05, beta=0.7)


def walk_of(norm: Any, size: tuple[int, int, int], bounds: str = "scalar", dtype: Any = torch.float64) -> Walk:
    s, k, n = size
    g = torch.Generator().manual_seed(s + n)
    x = torch.rand(s, n, generator=g, dtype=dtype)
    low, high = {"none": (None, 0.0), "feature": (x.amin(0) - 0.05, None), "sample": (x - 0.02, None),
                 "one low": (0.0, x + 0.02), "one high": (x - 0.02, 1.0)}.get(bounds, (0.0, None))  # fmt: skip
    threat = Threat(norm, 0.2, None if low is None else (low, low + 1.5 if high is None else high)).check(x)
    begin = x[:, None] + 0.01 * torch.randn(s, k, n, generator=g, dtype=dtype)
    far = torch.where(torch.arange(s) % 2 == 0, torch.inf, 1e-3).to(dtype)  # some have a near point already
    return Walk.start(x, begin, threat, x.clone(), far)


def slopes(walk: Walk) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    slope = torch.randn(walk.at.shape, generator=g, dtype=walk.at.dtype) ** 3
    return torch.randn(walk.at.shape[:2], generator=g, dtype=walk.at.dtype), slope
