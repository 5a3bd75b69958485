"""Where diagonal state matrices start: S4D-Lin, S4D-Inv, S4D-LegS and S4D-Real (Gu et al. 2022, "On the
parameterization and initialization of diagonal state space models"), and PTD (`ptd_method`).

Complex spectra keep one of each conjugate pair, lam_n with n = 0 .. d_state/2 - 1; all but PTD have Re(lam) = -1/2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.init import ptd_store
from resolvent.init.ptd_method import closed_form
from resolvent.init.ptd_method import ptd as perturb_then_diagonalise
from resolvent.init.ptd_result import PTD
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


def ptd(d_state: int) -> tuple[Tensor, Tensor]:
    """Half of the spectrum of LegS + E, and B = V^-1 B_hippo: with C = C_0 V the model is (A + E, B_hippo, C_0)."""
    result = legs_ptd(d_state)
    lam, _, V_inv = result.half()
    assert result.B is not None
    return lam, (V_inv @ result.B.to(V_inv.dtype))[:, 0]


def legs_ptd(n: int) -> PTD:
    """PTD of LegS for a layer, at once for any size: the shipped result, else the closed form (kappa < 20)."""
    return perturb_then_diagonalise("legs", n) if ptd_store.holds("legs", n) else _closed_form(n).copy()


@functools.lru_cache(8)
def _closed_form(n: int) -> PTD:
    return closed_form("legs", n)


SPECTRA: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "legs": legs, "lin": lin, "inv": inv, "real": real, "ptd": ptd,
}  # fmt: skip


def _with_ones(frequency: Tensor) -> tuple[Tensor, Tensor]:
    lam = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return lam, torch.ones_like(lam)


def _index(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64, device="cpu")
