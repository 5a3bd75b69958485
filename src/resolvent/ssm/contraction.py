"""Matrices of spectral norm at most one from free ones: the building blocks of prescribed gains.

Everything is smooth in the free matrix and avoids singular value decompositions, so that first and second derivatives
exist everywhere; `spectral_norm` is the exact value for certificates. Factorisations are unchecked: they never
synchronise a GPU, and NaN inputs give NaN outputs, which a certificate or training loop then detects.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SQUARINGS = 5  # of the Gram matrix in `norm_bound`: overestimates by at most n^(1/128), 4 % at n = 256
LARGEST = 1e3  # largest norm of a squared free matrix: singular values then come within 5e-7 of one


def spectral_norm(W: Tensor) -> float:
    """The largest singular value, in float64."""
    W = W.detach()
    if not W.numel():
        return 0.0
    return float(torch.linalg.matrix_norm(W.to(torch.complex128 if W.is_complex() else torch.float64), 2))


def norm_bound(W: Tensor) -> Tensor:
    """A smooth upper bound of the largest singular value s_1: the Schatten norm (sum_i s_i^p)^(1/p), p = 4 * 2^k.

    With M = W^T W and k squarings, |M^(2^k)|_F = (sum s_i^p)^(1/2). W is divided by its largest entry and each square
    by its norm, whose logarithms are kept, so that nothing overflows.
    """
    least = torch.finfo(W.dtype).tiny
    unit = W.detach().abs().amax().clamp_min(least)  # the bound is homogeneous: scaling needs no derivative
    W = W / unit
    M = W.mT @ W if W.shape[-2] >= W.shape[-1] else W @ W.mT
    size = torch.linalg.matrix_norm(M).clamp_min(least)
    M, log = M / size, size.log()
    for _ in range(SQUARINGS):
        M = M @ M
        size = torch.linalg.matrix_norm(M).clamp_min(least)
        M, log = M / size, 2 * log + size.log()
    return unit * torch.exp(log / 2 ** (SQUARINGS + 1))


def cap_norm(W: Tensor, largest: float | Tensor = 1.0) -> Tensor:
    """W scaled down to a norm of at most `largest`; unchanged where `norm_bound` is already below it."""
    return W * (largest / torch.clamp(norm_bound(W), min=largest))


def inverse_defects(*free: Tensor) -> Tensor:
    """For each given X (r, c), L^-1 with L L^T = I + X^T X: (k, c, c). K = X L^-T is then a contraction (every strict
    one for some X), and its defect is I - K^T K = L^-1 L^-T."""
    G = torch.stack([X.mT @ X for X in free])
    S: Tensor = _InverseFactor.apply(G + torch.eye(G.shape[-1], dtype=G.dtype, device=G.device))
    return S


class _InverseFactor(torch.autograd.Function):
    """G (k, c, c) symmetric -> S = L^-1 with G = L L^T. dS = -Φ(S dG S^T) S, Φ taking the lower triangle and half of
    the diagonal: only matrix products, where differentiating a factorisation and solve would need more solves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(G: Tensor) -> Tensor:
        L = torch.linalg.cholesky_ex(G)[0]
        return invert_lower(L, 32 if L.is_cuda else L.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (S,) = ctx.saved_tensors
        return -S.mT @ _lower_half(gradients[0] @ S.mT) @ S

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (S,) = ctx.saved_tensors
        return -_lower_half(S @ tangents[0] @ S.mT) @ S


def _lower_half(M: Tensor) -> Tensor:
    """Φ: the lower triangle with half of the diagonal."""
    return (M.tril() + M.tril(-1)) / 2


def invert_lower(L: Tensor, size: int) -> Tensor:
    """L^-1 of lower triangular L (..., n, n); blocks above `size` are inverted by products of halves, both at once: on
    a GPU a triangular solve proceeds row by row."""
    n, h = L.shape[-1], L.shape[-1] // 2
    if n <= size or n % 2:
        return solve_lower(L, torch.eye(n, dtype=L.dtype, device=L.device).expand_as(L))
    A, C = invert_lower(torch.stack([L[..., :h, :h], L[..., h:, h:]]), size)
    return torch.cat([torch.nn.functional.pad(A, (0, h)), torch.cat([C @ (-L[..., h:, :h] @ A), C], -1)], -2)


def solve_lower(L: Tensor, X: Tensor) -> Tensor:
    """L^-1 X for a lower triangular L."""
    return torch.linalg.solve_triangular(L, X, upper=False)


def cayley(S: Tensor) -> Tensor:
    """The orthogonal (I - S)(I + S)^-1 of the skew part S - S^T of any square matrix."""
    S = hold_norm(S, 10 * LARGEST)
    skew = S - S.mT
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return torch.linalg.solve_ex(eye + skew, eye - skew)[0]


def cayley_rows(U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """A (n, n) and B (n, m) with A A^T + B B^T = I from free U (n, n) and V (m, n): Wang and Manchester 2023, eq. 9."""
    U, V = hold_norm(U, 10 * LARGEST), hold_norm(V)
    eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
    Z = U - U.mT + V.mT @ V
    inverse = torch.linalg.inv_ex(eye + Z)[0]
    return (inverse @ (eye - Z)).mT, -2 * (V @ inverse).mT


def hold_norm(W: Tensor, largest: float = LARGEST) -> Tensor:
    """W with Frobenius norm at most `largest`, so that factorisations stay accurate well below float32's eps."""
    return W * (largest / torch.linalg.matrix_norm(W, keepdim=True).clamp_min(largest))


def rounding_margin(size: int) -> float:
    """1 - m such that (1 - m) K, rounded to float32, is a contraction if K (size x size) is one.

    Rounding changes each entry by at most u = eps / 2 of it, the matrix by at most u |K|_F <= u sqrt(size); the rest
    of m covers the error of K itself, computed in float64. float64 uses the same m, so that both give the same layer.
    """
    return 1.0 - 4 * torch.finfo(torch.float32).eps * math.sqrt(size)
