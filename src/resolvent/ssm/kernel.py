"""Convolution kernels of discrete systems: K_l = C A^l B, so that y = K * u + D u.

dense        step by step: the reference
krylov       the same for any A with doubled strides: log2(l) products of matrices
vandermonde  diagonal A, K_l = sum_n C_n B_n lam_n^l, as a product of two thin tables of powers
cauchy       A = diag - P Q^*, through the generating function at the roots of unity (S4, Gu et al. 2022)

Every kernel has the shape (..., p, m, l) for p outputs, m inputs and the bank `...`, in the system's dtype: for a
system closed under conjugation its imaginary part is rounding error. The direct term D is not included. For a
delayed system K_0 = 0 and K_l = C A^(l-1) B. `kernel` validates its arguments and accepts length 0; the functions
for one method, which it calls, start at length 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from resolvent.ssm.discretise import discretise
from resolvent.ssm.system import DPLR, Diagonal, System, broadcast, check_discrete
from resolvent.usage.numbers import check_choice, check_count

Form = TypeVar("Form", Diagonal, DPLR)
METHODS = ("dense", "krylov", "vandermonde", "cauchy")
SHRINK = 0.5  # r^l of the circle that the cauchy nodes lie on: avoids poles on the unit circle at the cost of one bit


def kernel(system: System, length: int, method: str | None = None) -> Tensor:
    """K (..., p, m, length) of a discrete time-invariant system; `method` defaults by the form of A.

    Examples:
        >>> rv.ssm.kernel(rv.S4D(2, 4).system(), 16).shape
        torch.Size([2, 1, 1, 16])
    """
    _check(system, length, method)
    if system.delay:
        shifted = kernel(replace(system, delay=False), max(length - 1, 0), method)
        return torch.nn.functional.pad(shifted, (min(length, 1), 0))
    if method is None:
        method = {Diagonal: "vandermonde", DPLR: "cauchy"}.get(type(system.A), "krylov")
    if length == 0:
        return system.B.new_zeros(*system.bank, system.outputs, system.inputs, 0)
    of_any = {"dense": dense_kernel, "krylov": krylov_kernel, "cauchy": cauchy_kernel}
    if method in of_any:
        return of_any[method](system, length)
    lam = _form(system, Diagonal).lam
    weight = system.C[..., :, None, :] * system.B.mT[..., None, :, :]  # (..., p, m, n)
    return vandermonde_kernel(lam[..., None, None, :], weight, length)


def dense_kernel(system: System, length: int) -> Tensor:
    """The reference: x_0 = B, x_l = A x_(l-1), K_l = C x_l.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> rv.ssm.dense_kernel(rv.System(0.5 * one, one, one, 0 * one, dt=1.0), 3)
        tensor([[[1.0000, 0.5000, 0.2500]]])
    """
    A, x, K = system.A.dense(), system.B, []
    for _ in range(length):
        K.append(system.C @ x)  # (..., p, m)
        x = A @ x
    return torch.stack(K, -1)


def krylov_kernel(system: System, length: int) -> Tensor:
    """X = [B, A B, A^2 B, ...] doubled with A^k X, A^2k, ... until long enough; then C X.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> rv.ssm.krylov_kernel(rv.System(0.5 * one, one, one, 0 * one, dt=1.0), 3)
        tensor([[[1.0000, 0.5000, 0.2500]]])
    """
    X, power = system.B[..., None, :], system.A.dense()  # (..., n, 1, m)
    while X.shape[-2] < length:
        flat = X.flatten(-2)  # (..., n, k m)
        X = torch.cat(torch.broadcast_tensors(X, (power @ flat).unflatten(-1, X.shape[-2:])), -2)
        power = power @ power
    K = system.C @ X[..., :length, :].flatten(-2)  # (..., p, l m)
    return K.unflatten(-1, (length, system.inputs)).transpose(-1, -2)


def vandermonde_kernel(lam: Tensor, weight: Tensor, length: int, halves: bool = False) -> Tensor:
    """K_l = sum_n weight_n lam_n^l for l < length: lam and weight (..., n) -> (..., length).

    With l = i T + j the sum is a product of (weight lam^(i T)) and (lam^j), T ~ sqrt(length): no table of l x n.
    halves=True returns the real 2 Re(K), the sum over conjugate pairs, with real products only.

    Examples:
        >>> rv.ssm.vandermonde_kernel(torch.tensor([0.5 + 0j]), torch.tensor([1.0 + 0j]), 3).real
        tensor([1.0000, 0.5000, 0.2500])
    """
    T = max(1, math.isqrt(length))
    blocks = -(-length // T)
    fine, stride = powers(lam, T)  # (..., n, T)
    coarse = weight[..., None] * powers(stride, blocks)[0]  # (..., n, blocks)
    if halves:
        left = torch.cat([coarse.real, -coarse.imag], -2)
        K = 2 * (left.mT @ torch.cat([fine.real, fine.imag], -2))
    else:
        K = coarse.mT @ fine  # (..., blocks, T)
    return K.flatten(-2)[..., :length]


def powers(lam: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """lam^0, ..., lam^(count-1) on a new last axis, and lam^count; products only, so lam = 0 is no special case."""
    table, factor = torch.ones_like(lam)[..., None], lam[..., None]
    while table.shape[-1] < count:
        table = torch.cat([table, table * factor], -1)
        factor = factor * factor
    table = table[..., :count]
    return table, table[..., -1] * lam


def cauchy_kernel(system: System, length: int) -> Tensor:
    """The kernel of a discrete DPLR system in O((n + l) n) plus one inverse transform.

    At the nodes om_j = r exp(-2 pi i j / l) the generating function sum_l K_l om^l is
        K_hat(om) = C (I - r^l A^l) (I - om A)^-1 B,
    and Woodbury's identity leaves sums over 1 / (1 - om lam). A radius r < 1 (r^l = 1/2) keeps every node regular, also
    for lam on the unit circle (legt, lagt, fout), where the textbook r = 1 would divide by zero.

    Examples:
        >>> lam, P, B, V = rv.ssm.dplr("legs", 4)
        >>> system = rv.System(rv.ssm.DPLR(lam, P, P), B[:, None], B[None], torch.zeros(1, 1))
        >>> rv.ssm.cauchy_kernel(rv.ssm.discretise(system, 0.1, "bilinear"), 8).shape
        torch.Size([1, 1, 8])
    """
    A = _form(system, DPLR)
    r, j = SHRINK ** (1 / length), torch.arange(length, dtype=system.B.real.dtype, device=system.B.device)
    om = torch.polar(r * torch.ones_like(j), -2 * math.pi / length * j)  # (l,)
    last = system.C - SHRINK * (system.C @ torch.linalg.matrix_power(A.dense(), length))  # (..., p, n)
    G = _cauchy(1 / (1 - om[:, None] * A.lam[..., None, :]), last, system.B, A)  # (..., l, p + r, m + r)
    p, m = system.outputs, system.inputs
    om = om[:, None, None]
    k00, k01, k10, k11 = G[..., :p, :m], G[..., :p, m:], G[..., p:, :m], G[..., p:, m:]
    eye = torch.eye(k11.shape[-1], dtype=k11.dtype, device=k11.device)
    K_hat = k00 - om * k01 @ torch.linalg.solve(eye + om * k11, k10)
    K = torch.fft.ifft(K_hat.movedim(-3, -1)) / r**j
    return K if system.dtype.is_complex else K.real  # (..., p, m, l)


def cauchy_kernel_continuous(lam: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: float | Tensor, length: int) -> Tensor:
    """S4's kernel: the bilinear one of A = diag(lam) - P P^* directly from the continuous system.

    lam, B, C (..., n), P (..., n, r), dt a number or (...); complex (..., length). S4 sums 1 / (g - lam_n) at
    g = (2/dt)(1 - om)/(1 + om); this is `cauchy_kernel` of the discrete system, which no lam and no om = -1 disturbs.

    Examples:
        >>> lam, P, B, V = rv.ssm.dplr("legs", 4)
        >>> rv.ssm.cauchy_kernel_continuous(lam, P, B, B, 0.1, 8).shape
        torch.Size([8])
    """
    step = torch.as_tensor(dt, dtype=B.real.dtype, device=B.device)
    continuous = System(DPLR(lam, P, P), B[..., None], C[..., None, :], B.new_zeros(1, 1))
    return cauchy_kernel(discretise(continuous, step, "bilinear"), length)[..., 0, 0, :]


def _form(system: System, form: type[Form]) -> Form:
    if not isinstance(system.A, form):
        raise ValueError(
            f"kernel: this method needs a {form.__name__} A, got {type(system.A).__name__}; "
            "call kernel(system, length) without a method, or with 'krylov'."
        )
    return system.A


def _cauchy(inverse: Tensor, C: Tensor, B: Tensor, A: DPLR) -> Tensor:
    """[C; Q^*] diag(inverse_j) [B, P] for each node j: inverse (..., l, n) -> (..., l, p + r, m + r)."""
    left, right = stack([C, A.Q.mH], -2), stack([B, A.P], -1)
    pairs = left.mT[..., :, :, None] * right[..., :, None, :]  # (..., n, p + r, m + r)
    return (inverse @ pairs.flatten(-2).to(inverse.dtype)).unflatten(-1, pairs.shape[-2:])


def stack(parts: list[Tensor], axis: int) -> Tensor:
    """cat along one of the last two axes, with the banks of all brought together."""
    lead = broadcast(*(t.shape[:-2] for t in parts))
    return torch.cat([t.expand(*lead, *t.shape[-2:]) for t in parts], axis)


def _check(system: System, length: int, method: str | None) -> None:
    check_discrete("kernel", system, "build System(A, B, C, D, dt)")
    if system.time_varying:
        raise ValueError("kernel: a time-varying system has no single kernel; use system.simulate(u).")
    check_count("kernel", 0, length=length)
    if method is not None:
        check_choice("kernel", "method", method, METHODS)
