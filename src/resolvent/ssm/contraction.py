"""Matrices of spectral norm at most one made from free ones: what prescribed gains are built of.

Everything is smooth in the free matrix and free of singular value decompositions, so that first and second derivatives
exist everywhere; `spectral_norm` is the exact number for certificates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQUARINGS = 5  # of the Gram matrix in `norm_bound`: too large by at most n^(1/128), 4 % at n = 256
LARGEST = 1e4  # free matrices under a Cayley transform: turns come within 1e-4 of pi, which nobody misses


def spectral_norm(W: Tensor) -> float:
    """The largest singular value, in float64."""
    W = W.detach()
    if not W.numel():
        return 0.0
    return float(torch.linalg.matrix_norm(W.to(torch.complex128 if W.is_complex() else torch.float64), 2))


def norm_bound(W: Tensor) -> Tensor:
    """A smooth upper bound of the largest singular value s_1: the Schatten norm (sum_i s_i^p)^(1/p), p = 4 * 2^k.

    With M = W^T W and k squarings, |M^(2^k)|_F = (sum s_i^p)^(1/2). Each square is divided by its norm, and the
    logarithms of these norms are kept, so that nothing overflows.
    """
    M = W.mT @ W if W.shape[-2] >= W.shape[-1] else W @ W.mT
    size = torch.linalg.matrix_norm(M).clamp_min(torch.finfo(W.dtype).tiny)
    M, log = M / size, size.log()
    for _ in range(SQUARINGS):
        M = M @ M
        size = torch.linalg.matrix_norm(M)  # at least n^-1/2
        M, log = M / size, 2 * log + size.log()
    return torch.exp(log / 2 ** (SQUARINGS + 1))


def capped(W: Tensor, largest: float | Tensor = 1.0) -> Tensor:
    """W scaled down to a norm of at most `largest`; unchanged when `norm_bound` is below it already."""
    return W * (largest / torch.clamp(norm_bound(W), min=largest))


def contraction(X: Tensor) -> tuple[Tensor, Tensor]:
    """K = X L^-T with the Cholesky factor of L L^T = I + X^T X: every strict contraction, from every X (r, c).

    Returns K and L^-T (c, c), the factor of its defect: I - K^T K = L^-1 L^-T.
    """
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    L = torch.linalg.cholesky(eye + X.mT @ X)
    defect = torch.linalg.solve_triangular(L, eye, upper=False).mT  # L^-T
    return X @ defect, defect


def cayley(S: Tensor) -> Tensor:
    """The orthogonal (I - S)(I + S)^-1 of the skew part S - S^T of any square matrix."""
    S = held(S)
    skew = S - S.mT
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return torch.linalg.solve(eye + skew, eye - skew)


def cayley_rows(U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """A (n, n) and B (n, m) with A A^T + B B^T = I from free U (n, n) and V (m, n): Wang and Manchester 2023, eq. 9."""
    U, V = held(U), held(V)
    eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
    Z = U - U.mT + V.mT @ V
    inverse = torch.linalg.inv(eye + Z)
    return (inverse @ (eye - Z)).mT, -2 * (V @ inverse).mT


def held(W: Tensor) -> Tensor:
    """W with its Frobenius norm held at LARGEST, so that an inverse made of it stays exact to float32."""
    return W * (LARGEST / torch.linalg.matrix_norm(W, keepdim=True).clamp_min(LARGEST))


def rounding_margin(size: int) -> float:
    """1 - m such that (1 - m) K, rounded to float32, is a contraction where K (size x size) is one.

    Rounding moves each entry by at most u = eps / 2 of itself, the matrix by at most u |K|_F <= u sqrt(size); the rest
    of m is room for K itself, which was computed in float64. The same m for float64 keeps both the same layer.
    """
    return 1.0 - 4 * torch.finfo(torch.float32).eps * math.sqrt(size)
