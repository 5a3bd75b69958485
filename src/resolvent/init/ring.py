"""Ring initialisation of the LRU: eigenvalues uniform in area on a ring of the unit disc.

Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences", lemma 3.2: with lam = r e^(i theta),
r^2 ~ U(r_min^2, r_max^2) and theta ~ U(0, max_phase). The LRU trains the logarithms

    nu_log = log(-log r),    theta_log = log theta,    gamma_log = log sqrt(1 - r^2)

so that r = exp(-exp(nu_log)) < 1 whatever an optimiser does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST_DRAW = 1e-12  # a draw of exactly 0 has no logarithm


def check_ring(where: str, r_min: float, r_max: float, max_phase: float) -> None:
    """0 <= r_min < r_max <= 1 and 0 < max_phase <= 2 pi, or a ValueError that names the caller."""
    if not 0.0 <= r_min < r_max <= 1.0:
        raise ValueError(
            f"{where}: expected 0 <= r_min < r_max <= 1 (radii of a ring inside the unit disc), got r_min={r_min} and "
            f"r_max={r_max}; long sequences do well with 0.9 and 0.999."
        )
    if not 0.0 < max_phase <= 2 * math.pi + 1e-9:
        raise ValueError(
            f"{where}: expected 0 < max_phase <= 2 pi (radians), got {max_phase}; use 2 * math.pi for the whole ring."
        )


def ring(
    n: int,
    r_min: float = 0.0,
    r_max: float = 1.0,
    max_phase: float = 2 * math.pi,
    *,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw n eigenvalues: (nu_log, theta_log), each (n,). Computed in float64: log(-log r) cancels near r = 1."""
    check_ring("ring", r_min, r_max, max_phase)
    draw = torch.rand(2, n, dtype=torch.float64, generator=generator).clamp_min(SMALLEST_DRAW)
    r_squared = draw[0] * (r_max**2 - r_min**2) + r_min**2
    nu_log = torch.log(-0.5 * torch.log(r_squared))
    theta_log = torch.log(max_phase * draw[1])
    dtype = dtype or torch.get_default_dtype()
    return nu_log.to(dtype), theta_log.to(dtype)


def normaliser(nu_log: Tensor) -> Tensor:
    """gamma_log = log sqrt(1 - r^2): scales the input so that unit white noise gives a state of unit variance."""
    return 0.5 * torch.log(-torch.expm1(-2 * nu_log.exp()))
