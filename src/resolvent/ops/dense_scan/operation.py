"""The recurrence x_k = A x_{k-1} + v_k of a full matrix A over a whole sequence, by odd-even halving.

Its gradient is the same recurrence run backwards with A transposed,

    γ_k = A' γ_{k+1} + ∂x_k,    ∂v = γ,    ∂A = sum_k γ_k x_{k-1}',    ∂x_0 = A' γ_0

so derivatives of every order consist of it. In a traced pass it is one opaque node, `resolvent::dense_scan`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from resolvent.ops import plain
from resolvent.ops.library import fresh, one_by_one
from resolvent.runtime.transforms import (
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
)


def dense_scan(A: Tensor, v: Tensor, x0: Tensor) -> Tensor:
    """x_k = A x_{k-1} + v_k for a full A (n, n), v (b, l, n), x0 (b, n): all x (b, l, n)."""
    if is_traced(v):
        if plain.is_chosen():
            return plain.dense_scan(A.mT, v + plain.first_step(linear(x0, A), v))
        recorded: Tensor = _scan(A, v, x0)
        return recorded
    if not is_untransformed() or not torch.is_grad_enabled():
        return halving(A, v, x0)
    x: Tensor = _Scan.apply(A, v, x0)
    return x


def halving(A: Tensor, v: Tensor, x0: Tensor) -> Tensor:
    """x_k = A x_{k-1} + v_k for a full A (n, n), v (b, l, n), x0 (b, n): all x (b, l, n).

    Two steps are one with A^2, driven by A v_{2j} + v_{2j+1}: half the length gives every second state, and one more
    product the others. About 2 l n^2 operations in 2 log2(l) calls; |A| <= 1 keeps every power small, without loss of
    accuracy. Plain operations throughout: derivatives of every order are automatic.
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


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, v: Tensor, x0: Tensor) -> Tensor:
        x = halving(A, v, x0)
        ctx.save_for_backward(A, v, x0, x)
        return x

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        A, v, x0, x = ctx.saved_tensors
        if by_graph_only(*gradients):
            return gradients_by_graph(lambda *t: (halving(*t),), (A, v, x0), gradients, ctx.needs_input_grad)
        return _adjoint(halving, gradients[0], A, x0, x)


def _adjoint(scan: Callable[..., Tensor], g: Tensor, A: Tensor, x0: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gamma = scan(A.mT.contiguous(), g.flip(1), torch.zeros_like(x0)).flip(1)
    before = torch.cat([x0[:, None], x], 1).narrow(1, 0, x.shape[1])
    return gamma.flatten(0, 1).mT @ before.flatten(0, 1), gamma, linear(gamma[:, 0], A.mT)


@torch.library.custom_op("resolvent::dense_scan", mutates_args=())
def _scan(A: Tensor, v: Tensor, x0: Tensor) -> Tensor:
    return halving(A, v, x0).contiguous()


_scan.register_fake(lambda A, v, x0: fresh(v))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    A, _, x0 = inputs
    ctx.save_for_backward(A, x0, output)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    A, x0, x = ctx.saved_tensors
    return _adjoint(_scan, g, A, x0, x)


_scan.register_autograd(_gradients, setup_context=_save)
one_by_one(_scan)
