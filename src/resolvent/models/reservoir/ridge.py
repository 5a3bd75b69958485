"""Ridge regression in closed form, its penalty chosen by leave-one-out errors.

    minimise |Y - F W - 1 b|^2 + alpha |W|^2    over W (p, c) and b (c,)

With the centred F = U S V^T, the fitted values are H Y with H = 1 1^T / n + U diag(S^2 / (S^2 + alpha)) U^T, and the
prediction of row i by the regression without it is y_i - (y_i - (H Y)_i) / (1 - H_ii), for every alpha from one
decomposition of the smaller of F F^T and F^T F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-10  # directions of F below this share of the largest are numerical noise


@dataclass(frozen=True)
class Ridge:
    """W (p, c), b (c,), the penalty, and for each row (n, c) the prediction of a regression without it."""

    weight: Tensor
    bias: Tensor
    alpha: float
    left_out: Tensor


def fit_ridge(F: Tensor, Y: Tensor, alphas: Sequence[float]) -> Ridge:
    """F (n, p) and Y (n, c) in float64; the alpha of the smallest squared leave-one-out error."""
    n, p = F.shape
    f, y = F - F.mean(0), Y - Y.mean(0)
    square, vectors = torch.linalg.eigh(f @ f.mT if n <= p else f.mT @ f)  # S^2 ascending, and U or V
    used = square > TINY * square[-1]
    square, vectors = square[used], vectors[:, used]
    U = vectors if n <= p else f @ vectors / square.sqrt()  # (n, r)
    aim = U.mT @ y  # (r, c)

    def left_out(alpha: float) -> Tensor:
        kept = square / (square + alpha)
        lever = 1 / n + U.square() @ kept  # H_ii
        fitted = Y.mean(0) + U @ (kept[:, None] * aim)
        return Y - (Y - fitted) / (1 - lever).clamp_min(TINY)[:, None]

    best = min(alphas, key=lambda alpha: float((Y - left_out(alpha)).square().sum()))
    W = f.mT @ (U @ (aim / (square + best)[:, None]))
    return Ridge(W, Y.mean(0) - F.mean(0) @ W, best, left_out(best))
