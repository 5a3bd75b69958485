"""Initial diagonal state matrices: S4D-Lin, S4D-Inv, S4D-LegS and S4D-Real (Gu et al. 2022, "On the
parameterization and initialization of diagonal state space models"), and PTD (`ptd_method`).

Complex spectra keep one of each conjugate pair, lam_n with n = 0 .. d_state/2 - 1; all but PTD have Re(lam) = -1/2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.init import ptd_store
from resolvent.init.ptd_method import closed_form
from resolvent.init.ptd_method import ptd as perturb_then_diagonalise
from resolvent.init.ptd_result import PTD
from resolvent.init.ptd_start import towards_skew
from resolvent.runtime.transforms import constant
from resolvent.ssm.hippo import dplr, hippo


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


@constant
def ptd(d_state: int, size: float | None = None) -> tuple[Tensor, Tensor]:
    """Half of the spectrum of LegS + E, and B = V^-1 B_hippo: with C = C_0 V the model is (A + E, B_hippo, C_0)."""
    result = legs_ptd(d_state, size)
    lam, _, V_inv = result.half()
    assert result.B is not None
    return lam, (V_inv @ result.B.to(V_inv.dtype))[:, 0]


@constant
def ptd_modes(n: int, size: float | None = None, halves: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """lam (k,), V (n, k) and V_inv (k, n) of `legs_ptd`; k = n, or n/2 with `halves`."""
    found = legs_ptd(n, size)
    return found.half() if halves else (found.lam, found.V, found.V_inv)


def legs_ptd(n: int, size: float | None = None) -> PTD:
    """PTD of LegS for a layer, immediate for any number of states.

    size   ||E|| / ||A||, of a perturbation E = t P P^T; None: the shipped result, else that with t = 0.1 (kappa < 20)
    """
    if size is None and ptd_store.holds("legs", n):
        return perturb_then_diagonalise("legs", n)
    made = closed_form("legs", n) if size is None else closed_form("legs", n, share=share_of(n, size))
    return made.copy()


def share_of(n: int, size: float) -> float:
    """The t for which E = t P P^T has the relative size ||E|| / ||A|| of LegS; 1.27 times it for a large n."""
    if n == 1:
        raise ValueError("PTD: one state is diagonal and takes no perturbation; leave it out, or take more states.")
    A = hippo("legs", n)[0]
    return size * float(torch.linalg.matrix_norm(A, 2) / torch.linalg.matrix_norm(towards_skew(A), 2))


SPECTRA: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "legs": legs, "lin": lin, "inv": inv, "real": real, "ptd": ptd,
}  # fmt: skip


def _with_ones(frequency: Tensor) -> tuple[Tensor, Tensor]:
    lam = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return lam, torch.ones_like(lam)


def _index(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64, device="cpu")
