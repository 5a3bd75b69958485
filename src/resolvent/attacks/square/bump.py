"""The bumps of Square's L2 and L1 proposals (Andriushchenko et al. 2020, section 3.4).

Two halves of opposite sign, each a pyramid of concentric squares with weights 1 / (j + 1)^power.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_POWER = {"l2": 2, "l1": 4}
_ORDER = {"l2": 2, "l1": 1}


@lru_cache(maxsize=64)
def bumps(extent: tuple[int, ...], norm: str, device: torch.device) -> Tensor:
    """(2, a), each of unit norm: halves one above the other, and next to each other (1-d: up or down first)."""
    power = _POWER[norm]
    upright = _halves(extent, 0, power)
    turned = -upright if len(extent) == 1 else _halves(extent, 1, power)
    both = torch.stack([upright, turned]).flatten(1)
    return (both / torch.linalg.vector_norm(both, _ORDER[norm], dim=1, keepdim=True)).float().to(device)


def _halves(extent: tuple[int, ...], axis: int, power: int) -> Tensor:
    first = extent[axis] // 2
    sizes = [tuple(part if i == axis else e for i, e in enumerate(extent)) for part in (first, extent[axis] - first)]
    return torch.cat([_pyramid(sizes[0], power), -_pyramid(sizes[1], power)], dim=axis)


def _pyramid(extent: tuple[int, ...], power: int) -> Tensor:
    """Sum over j >= distance of 1 / (j + 1)^power, with the Chebyshev distance from the centre."""
    rings = max(e // 2 for e in extent) + 1
    weight = torch.arange(1, rings + 1, dtype=torch.float64).pow(-power)
    height = weight.flip(0).cumsum(0).flip(0)  # (rings,)
    away = torch.zeros(extent, dtype=torch.int64)
    for axis, e in enumerate(extent):
        line = (torch.arange(e) - e // 2).abs()
        away = torch.maximum(away, line.view([-1 if i == axis else 1 for i in range(len(extent))]).expand(extent))
    return height[away]
