"""Running a delayed recurrence x_{k+1} = A x_k + B u_k, y_k = C x_k + D u_k over a whole sequence.

Pairs of states rotated together go through the complex linear scan; a full matrix A through odd-even halving.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.layers.contract import at_lengths
from resolvent.layers.l2ru.forms import Matrices
from resolvent.ops.blocked import reals
from resolvent.ops.dense_scan import dense_scan, linear
from resolvent.ops.linear_scan import pair_scan
from resolvent.ops.mimo_scan import mimo_scan, serves
from resolvent.ops.pairs import stack_parts, tensor_of
from resolvent.runtime.transforms import half_products, is_traced
from resolvent.scan import linear_scan


def sequence(K: Matrices, u: Tensor, x0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """u (b, l, d), x0 (b, n) or complex (b, p) -> y (b, l, d) and the state at each sequence's end (b, ...)."""
    if is_traced(u):
        return _traced_sequence(K, u, x0, lengths)
    if u.is_cuda and K.A.is_complex() and serves(u, x0):
        return _scan(K, u, x0, lengths)
    if x0 is None:
        x0 = K.A.new_zeros(u.shape[0], K.A.shape[-1])
    x = states(K, u, x0)
    ahead = linear(reals(x), K.C)  # read at step k + 1: (b, l, d)
    y = linear(u, K.D)
    y[:, 0] += linear(reals(x0), K.C)
    y[:, 1:] += ahead[:, :-1]
    return y, at_lengths(x, lengths).clone()  # a view would keep all l states in memory


def _scan(K: Matrices, u: Tensor, x0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same with GPU kernels, with half-precision products where autocast asks for them."""
    dtype = torch.bfloat16 if half_products(u) else torch.float32
    lam, start = torch.view_as_real(tensor_of(K.A)), None if x0 is None else reals(x0)
    y, end = mimo_scan((lam, K.B, K.C, K.D), u, start, lengths, dtype)
    return y, _pairs(end)


def _traced_sequence(K: Matrices, u: Tensor, x0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same with states as real numbers."""
    v = linear(u, K.B)  # (b, l, n)
    start = torch.zeros_like(v[:, 0]) if x0 is None else reals(x0)
    x = pair_scan(stack_parts(K.A), v, start) if K.A.is_complex() else dense_scan(K.A, v, start)
    seen = torch.cat([start[:, None], x], 1).narrow(1, 0, u.shape[1])  # the state before each step
    end = at_lengths(x, lengths)
    return linear(u, K.D) + linear(seen, K.C), _pairs(end.contiguous()).clone() if K.A.is_complex() else end.clone()


def step(K: Matrices, u_t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """u_t (b, d), x -> y_t (b, d) and the next x."""
    y_t = linear(reals(x), K.C) + linear(u_t, K.D)
    Bu = linear(u_t, K.B)
    return y_t, (torch.addcmul(_pairs(Bu), tensor_of(K.A), x) if K.A.is_complex() else torch.addmm(Bu, x, K.A.mT))


def states(K: Matrices, u: Tensor, x0: Tensor) -> Tensor:
    """The state after every step."""
    Bu = linear(u, K.B)  # (b, l, n)
    return linear_scan(K.A, _pairs(Bu), x0) if K.A.is_complex() else dense_scan(K.A, Bu, x0)


def loop(K: Matrices, u: Tensor, x0: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as written: the reference of `sequence`. Returns y and the last state."""
    x, ys = x0, []
    for u_t in u.unbind(1):
        y_t, x = step(K, u_t, x)
        ys.append(y_t)
    return torch.stack(ys, 1), x


def _pairs(reals: Tensor) -> Tensor:
    return torch.view_as_complex(reals.unflatten(-1, (-1, 2)))
