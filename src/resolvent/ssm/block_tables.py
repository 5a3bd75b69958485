"""The tables of `blocked` for diagonal and for dense banks.

They are small, so they are made in float64 and rounded once: in float32 an angle dt Im(lam) of a hundred radians is
wrong in its fifth digit already, and a power of it more so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.ssm.blocked import Blocks, DenseCarry, DiagonalCarry

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}  # the compiler cannot trace to_complex()


@dataclass(frozen=True)
class DiagonalBank:
    """d systems h_k = lam h_{k-1} + gain u_k, y_k = Re(weight h_k) + D u_k, all in float64 or complex128.

    gain None stands for ones: the state is then the paper's x divided by B_bar, and weight holds C B_bar (2 C B_bar
    where one of each conjugate pair is kept).
    """

    lam: Tensor  # (d, n)
    weight: Tensor  # (d, n)
    D: Tensor | None = None  # (d,)
    gain: Tensor | None = None  # (d, n)


@dataclass(frozen=True)
class DenseBank:
    """d real systems x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k, in float64."""

    A: Tensor  # (d, s, s)
    B: Tensor  # (d, s)
    C: Tensor  # (d, s)
    D: Tensor | None = None  # (d,)


def wide(x: Tensor) -> Tensor:
    """x in float64, or as it is on devices that have none."""
    return x if x.device.type == "mps" else x.double()


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the real `dtype`, or in the complex one of that precision."""
    return x.to(COMPLEX[dtype] if x.is_complex() else dtype)


def inside(lam_bar: Tensor, dtype: torch.dtype) -> Tensor:
    """lam_bar with its modulus held below one by a margin that survives rounding to `dtype`."""
    largest = 1 - 4 * torch.finfo(dtype).eps
    return lam_bar * (largest / lam_bar.abs().clamp(min=0.5)).clamp(max=1)


def diagonal_blocks(bank: DiagonalBank, T: int, dtype: torch.dtype, delay: bool = False) -> Blocks:
    """Tables in the real `dtype`; with `delay` the output reads the state of the step before and no D."""
    powers = geometric(bank.lam, T)  # (d, T, n): lam^1 .. lam^T
    lower = torch.cat([torch.ones_like(powers[:, :1]), powers[:, :-1]], 1)  # lam^0 .. lam^{T-1}
    weight = bank.weight if bank.gain is None else bank.weight * bank.gain
    kernel = (reals(lower) @ _read_out(weight)[..., None])[..., 0]  # (d, T)
    M_in = lower.flip(1) if bank.gain is None else lower.flip(1) * bank.gain[:, None]
    M_out = _read_out(bank.weight[:, None] * (lower if delay else powers))
    carry = DiagonalCarry(narrow(powers, dtype))
    toeplitz = _toeplitz(_first_column(kernel, bank.D, delay).to(dtype))
    return Blocks(toeplitz, reals(M_in).to(dtype), M_out.to(dtype), carry)


def dense_blocks(bank: DenseBank, T: int, dtype: torch.dtype, delay: bool = False) -> Blocks:
    """The same for dense banks, by doubling: A^{2k} = A^k A^k reaches T in log2(T) products. T is a power of two."""
    doublings = [bank.A.mT]  # transposed: states are rows
    into, out = bank.B[:, None], bank.C[:, None]  # (d, k, s): rows A^i B and C A^i, i = 0 .. k-1
    while into.shape[1] < T:
        P = doublings[-1]
        into, out = torch.cat([into, into @ P], 1), torch.cat([out, out @ P.mT], 1)
        doublings.append(P @ P)
    kernel = (into @ bank.C[..., None])[..., 0]  # (d, T)
    M_out = out if delay else out @ bank.A
    carry = DenseCarry(tuple(P.to(dtype) for P in doublings))
    toeplitz = _toeplitz(_first_column(kernel, bank.D, delay).to(dtype))
    return Blocks(toeplitz, into.flip(1).to(dtype), M_out.to(dtype), carry)


def geometric(lam: Tensor, count: int) -> Tensor:
    """lam^1, ..., lam^count of lam (d, n) along a new axis 1, by doubling."""
    powers = lam[:, None]
    while powers.shape[1] < count:
        more = powers[:, : count - powers.shape[1]] * powers[:, -1:]
        powers = torch.cat([powers, more], 1)
    return powers


def reals(z: Tensor) -> Tensor:
    """Complex (..., n) as real (..., 2n), real and imaginary part in turn; real z as it is."""
    return torch.view_as_real(z.resolve_conj()).flatten(-2) if z.is_complex() else z


def _read_out(weight: Tensor) -> Tensor:
    """The real row w with w . reals(h) = Re(weight h)."""
    return reals(weight.conj())


def _first_column(kernel: Tensor, D: Tensor | None, delay: bool) -> Tensor:
    """The impulse response of one block: the kernel with D at zero, or one step later without it."""
    if delay:
        return torch.nn.functional.pad(kernel[:, :-1], (1, 0))
    return kernel if D is None else torch.cat([kernel[:, :1] + D[:, None], kernel[:, 1:]], 1)


def _toeplitz(kernel: Tensor) -> Tensor:
    """(d, T) -> (d, T, T) with K_{j-i} in row i, column j >= i, and zero below the diagonal."""
    T = kernel.shape[-1]
    return torch.nn.functional.pad(kernel, (T - 1, 0)).unfold(-1, T, 1).flip(1)
