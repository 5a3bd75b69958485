"""Running a delayed recurrence x_{k+1} = A x_k + B u_k, y_k = C x_k + D u_k over a whole sequence.

Pairs of states that turn together go through the complex linear scan; a full matrix A through odd-even halving.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from resolvent.layers.l2ru_forms import Matrices
from resolvent.scan import linear_scan


def sequence(K: Matrices, u: Tensor, x0: Tensor) -> tuple[Tensor, Tensor]:
    """u (b, l, d), x0 (b, n) or complex (b, p) -> y (b, l, d) and the state after every step (b, l, ...)."""
    x = states(K, u, x0)
    ahead = linear(_reals(x), K.C)  # what step k + 1 reads: (b, l, d)
    y = linear(u, K.D)
    y[:, 0] += linear(_reals(x0), K.C)
    y[:, 1:] += ahead[:, :-1]
    return y, x


def step(K: Matrices, u_t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """u_t (b, d), x -> y_t (b, d) and the next x."""
    y_t = linear(_reals(x), K.C) + linear(u_t, K.D)
    Bu = linear(u_t, K.B)
    return y_t, (torch.addcmul(_pairs(Bu), K.A, x) if K.A.is_complex() else torch.addmm(Bu, x, K.A.mT))


def states(K: Matrices, u: Tensor, x0: Tensor) -> Tensor:
    """The state after every step."""
    Bu = linear(u, K.B)  # (b, l, n)
    return linear_scan(K.A, _pairs(Bu), x0) if K.A.is_complex() else halving(K.A, Bu, x0)


def halving(A: Tensor, v: Tensor, x0: Tensor) -> Tensor:
    """x_k = A x_{k-1} + v_k for a full A (n, n), v (b, l, n), x0 (b, n): all x (b, l, n).

    Two steps are one with A^2, driven by A v_{2j} + v_{2j+1}: half the length gives every second state, and one more
    product the others. About 2 l n^2 operations in 2 log2(l) calls; |A| <= 1 keeps every power small, so nothing is
    lost to rounding. Plain operations throughout: derivatives of every order come by themselves.
    """
    l = v.shape[1]
    if l == 1:
        return v + linear(x0, A)[:, None]
    even, odd = v[:, 0::2], v[:, 1::2]
    last_of_two = halving(A @ A, odd + linear(even[:, : l // 2], A), x0)  # states after steps 1, 3, ...
    before = torch.cat([x0[:, None], last_of_two[:, : even.shape[1] - 1]], 1)  # before steps 0, 2, ...
    first_of_two = even + linear(before, A)
    whole = torch.stack([first_of_two[:, : l // 2], last_of_two], 2).flatten(1, 2)
    return whole if l % 2 == 0 else torch.cat([whole, first_of_two[:, -1:]], 1)


def loop(K: Matrices, u: Tensor, x0: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written: the slow truth of `sequence`. Returns y and the last state."""
    x, ys = x0, []
    for u_t in u.unbind(1):
        y_t, x = step(K, u_t, x)
        ys.append(y_t)
    return torch.stack(ys, 1), x


def _pairs(reals: Tensor) -> Tensor:
    return torch.view_as_complex(reals.unflatten(-1, (-1, 2)))


def _reals(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x
