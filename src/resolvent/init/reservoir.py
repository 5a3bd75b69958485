"""Random state-space systems that are kept as drawn: reservoirs, of which only the read-out is learned.

Each system is a sum of n damped oscillations with time constants near one of its own, tau, log-uniform from less than
a step to a sixth of the sequence,

    k_l = 2 Re sum_j C_j lam_j^l,    lam_j = exp(-1 / tau_j + i omega_j),    omega_j = U(0, 5) / tau_j < pi

so that the systems see all time scales with shapes of a few lobes. Half of them have no gain at frequency 0,
sum_j Re(C_j / (1 - lam_j)) = 0: they see changes and not the level.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHORTEST, SHARE = 0.7, 1 / 6  # time constants: the shortest, in steps, and the longest as a share of the length
SPREAD = 0.7  # of the logarithms of the time constants of one system
TURNS = 5.0  # largest phase (radians) in a time constant
NYQUIST = 0.95 * math.pi


def reservoir(d: int, n: int, length: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """lam_bar and C of d systems of n modes each, complex128 (d, n), for sequences of about this length.

    Examples:
        >>> lam_bar, C = rv.init.reservoir(3, 4, length=100)
        >>> lam_bar.shape, bool((lam_bar.abs() < 1).all())
        (torch.Size([3, 4]), True)
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, dtype=torch.float64, generator=generator)

    longest = max(3.0, SHARE * length)
    tau = torch.exp(uniform(math.log(SHORTEST), math.log(longest), d, 1) + uniform(-SPREAD, SPREAD, d, n))
    omega = (uniform(0, TURNS, d, n) / tau).clamp_max(NYQUIST)
    lam = torch.exp(torch.complex(-1 / tau, omega))
    C = torch.randn(d, n, dtype=torch.complex128, generator=generator)
    gain = 1 / (1 - lam)
    still = (C * gain).real.sum(1, keepdim=True)  # (d, 1), the gain at frequency 0
    level = gain.conj() / gain.abs().square().sum(1, keepdim=True)  # the smallest C of gain 1
    return lam, torch.where(uniform(0, 1, d, 1) < 0.5, C - still * level, C)
