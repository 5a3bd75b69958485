"""Where diagonal state matrices start: S4D-Lin, S4D-Inv, S4D-LegS and S4D-Real (Gu et al. 2022, "On the
parameterization and initialization of diagonal state space models").

Complex spectra keep one of each conjugate pair, lam_n with n = 0 .. d_state/2 - 1, and all have Re(lam) = -1/2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.ssm.hippo import dplr


def lin(d_state: int) -> tuple[Tensor, Tensor]:
    """lam_n = -1/2 + i pi n, B = 1: the frequencies of a Fourier series. n = 0 is kept at exactly zero frequency."""
    return _with_ones(math.pi * _index(d_state // 2))


def inv(d_state: int) -> tuple[Tensor, Tensor]:
    """lam_n = -1/2 + i (N/pi) (N/(2n+1) - 1), B = 1: close to the LegS frequencies, in closed form."""
    n = _index(d_state // 2)
    return _with_ones(d_state / math.pi * (d_state / (2 * n + 1) - 1))


def legs(d_state: int) -> tuple[Tensor, Tensor]:
    """The eigenvalues of HiPPO-LegS's normal part and B = V^* B_hippo, all of it.

    The diagonal system tends to LegS itself with B_hippo / 2; S4D as published drops this half (C absorbs it), and so
    do we. No clipping of B is applied.
    """
    lam, _, B, _ = dplr("legs", d_state)
    return lam, B


def real(d_state: int) -> tuple[Tensor, Tensor]:
    """lam_n = -(n + 1), B = 1, real: all d_state states are kept."""
    n = _index(d_state)
    return -(n + 1), torch.ones_like(n)


SPECTRA: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {"legs": legs, "lin": lin, "inv": inv, "real": real}


def _with_ones(frequency: Tensor) -> tuple[Tensor, Tensor]:
    lam = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return lam, torch.ones_like(lam)


def _index(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64)
