"""Diagonal minus low rank on one half of the conjugate pairs, as S4 keeps it.

The full A = diag([lam, conj lam]) - [P; conj P] [P; conj P]^* acts on [x; conj x], so on one half it is

    A x = lam x - P 2 Re(P^* x)

which is linear over the reals only. Vectors are therefore written in real form (n complex as 2n reals, real and
imaginary parts interleaved): A rotates and decays each pair minus a symmetric term: dissipative when Re(lam) < 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked import DenseBank
from resolvent.ops.pairs import Make, Number, Pair, join_parts
from resolvent.runtime.transforms import wide_all
from resolvent.ssm.discretise import discretise, positive
from resolvent.ssm.system import Dense, System

Parameters = Sequence[Tensor]  # log_decay, frequency (n_ssm, n), P (n_ssm, n, r, 2), B (n_ssm, n, 2), log_dt (d,)
Continuous = tuple[Number, Number, Number, Tensor]  # lam (d, n), P (d, n, r), B (d, n), dt (d,)


@dataclass(frozen=True)
class HalfDPLR:
    """x_k = A_bar x_{k-1} + B_bar u_k with A_bar x = lam_bar x - U 2 Re(Q^* x), for a bank of d systems."""

    lam_bar: Number  # (d, n)
    U: Number  # (d, n, r)
    Q: Number  # (d, n, r)
    B_bar: Number  # (d, n)

    def dense(self) -> Tensor:
        """A_bar as a real matrix (d, 2n, 2n)."""
        return real_matrix(self.lam_bar, self.U, self.Q)


def dense_bank(parameters: Parameters, discretisation: str, make: Make = join_parts) -> DenseBank:
    """A layer's d systems, from `Parameters` followed by C (d, n, 2) and D (d,), if any."""
    own = wide_all(parameters)
    C, D = own[5], own[6] if own[6:] else None
    row = torch.stack([2 * C[..., 0], -2 * C[..., 1]], -1).flatten(-2)  # (d, 2n): 2 Re(C x)
    lam, P, B, dt = continuous(own[:5], make)
    if discretisation == "bilinear":
        half = discrete((lam, P, B, dt), parameters[5].dtype)
        return DenseBank(half.dense(), _real_row(half.B_bar), row, D)
    zero = torch.zeros_like(row[:, :1, None])
    held = discretise(System(Dense(real_matrix(lam, P, P)), _real_row(B)[..., None], row[:, None], zero), dt)
    return DenseBank(held.A.dense(), held.B[..., 0], row, D)


def continuous(parameters: Parameters, make: Make = join_parts) -> Continuous:
    """The systems of all channels, which share n_ssm of them in equal groups; the parameters are in float64."""
    log_decay, frequency, P, B, log_dt = parameters
    lam = make(-positive(log_decay), frequency)
    shared = log_dt.shape[0] // log_decay.shape[0]  # channels to a system
    each = [lam, make(*P.unbind(-1)), make(*B.unbind(-1))]
    lam, P_n, B_n = [z.repeat_interleave(shared, 0) for z in each]
    return lam, P_n, B_n, positive(log_dt)


def discrete(continuous: Continuous, dtype: torch.dtype) -> HalfDPLR:
    """Discretise by the bilinear rule; a contraction even after rounding to `dtype`."""
    lam, P, _, dt = continuous
    return contract(bilinear(*continuous), lam, P, dt, 8 * torch.finfo(dtype).eps)


def bilinear(lam: Number, P: Number, B: Number, dt: Tensor) -> HalfDPLR:
    """A_bar = 2 (I - dt/2 A)^-1 - I and B_bar = (I - dt/2 A)^-1 dt B; lam (d, n), P (d, n, r), B (d, n), dt (d,).

    With F = 1/(1 - dt/2 lam), Woodbury's identity gives (I - dt/2 A)^-1 x = F x - F P G Re(P^* F x) dt, where
    G = (I + dt Re(P^* F P))^-1 is real, r x r, and bounded because Re F > 0.
    """
    dt = dt[:, None]
    F = (-lam.mul(dt / 2) + 1).reciprocal()  # (d, n)
    FP = F[..., None] * P  # (d, n, r)
    eye = torch.eye(P.shape[-1], dtype=dt.dtype, device=dt.device)
    G = _inverse(eye + dt[..., None] * (real_rows(P).mT @ real_rows(FP)))  # (d, r, r)
    U = _mix(FP.mul(dt[..., None]), G)  # (d, n, r)
    # Written out: conj()'s lazy bit is lost inside an operator under a dispatch mode.
    conjugate = F.conj() if isinstance(F, Pair) else torch.complex(F.real, -F.imag)
    Q = conjugate[..., None] * P  # (d, n, r)
    seen = real_rows(Q).mT @ real_rows(B[..., None])  # (d, r, 1): Re(P^* F B)
    B_bar = (F * B - _mix(U, seen)[..., 0]).mul(dt)
    return HalfDPLR(F * 2 - 1, U, Q, B_bar)


def _mix(z: Number, G: Tensor) -> Any:
    """z G for a real matrix G."""
    return Pair(z.real @ G, z.imag @ G) if isinstance(z, Pair) else z @ G.to(z.dtype)


def _inverse(M: Tensor) -> Tensor:
    """Inverse without torch.linalg.inv's error check, which would synchronise a GPU."""
    return 1 / M if M.shape[-1] == 1 else torch.linalg.inv_ex(M).inverse


def contract(half: HalfDPLR, lam: Number, P: Number, dt: Tensor, margin: float) -> HalfDPLR:
    """The same with ||A_bar|| limited to 1 - margin.

    ||A_bar||^2 <= 1 - 2 dt mu / (1 + dt/2 ||A||)^2 with mu = min |Re lam|. Where this bound leaves less than
    `margin`, too little to survive rounding, A_bar is scaled down by the shortfall: nothing where dt resolves A.
    """
    size = lam.abs().amax(-1) + 2 * (P.abs() ** 2).sum((-1, -2))  # (d,), at least ||A||
    left = dt * (-lam.real).amin(-1) / (1 + dt / 2 * size) ** 2
    scale = (1 - (margin - left).clamp(min=0))[:, None]  # (d, 1)
    return HalfDPLR(half.lam_bar.mul(scale), half.U.mul(scale[..., None]), half.Q, half.B_bar)


def real_matrix(lam: Number, U: Number, Q: Number) -> Tensor:
    """The real matrix (d, 2n, 2n) of x -> lam x - U 2 Re(Q^* x)."""
    n = lam.shape[-1]
    turn = torch.stack([lam.real, -lam.imag, lam.imag, lam.real], -1).unflatten(-1, (2, 2))  # (d, n, 2, 2)
    eye = torch.eye(n, dtype=turn.dtype, device=turn.device)
    diagonal = torch.einsum("dnij,nm->dnimj", turn, eye).flatten(3).flatten(1, 2)  # (d, 2n, 2n)
    return diagonal - 2 * real_rows(U) @ real_rows(Q).mT


def real_rows(z: Number) -> Tensor:
    """Complex (..., n, r) as real (..., 2n, r)."""
    parts = torch.stack([z.real, z.imag], -1) if isinstance(z, Pair) else torch.view_as_real(z)
    return parts.transpose(-1, -2).flatten(-3, -2)


def _real_row(z: Number) -> Tensor:
    """Complex (..., n) as real (..., 2n)."""
    return real_rows(z[..., None])[..., 0]
