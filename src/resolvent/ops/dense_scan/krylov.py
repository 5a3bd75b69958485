"""[b, A b, A^2 b, ...] by doubling; where a pass is traced one opaque node, so that the length may be left open."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.library import one_by_one, recording
from resolvent.runtime.transforms import gradients_by_graph, is_traced


def krylov(A: Tensor, b: Tensor, length: int) -> Tensor:
    """[b, A b, A^2 b, ...] (..., m, length) of A (..., m, m) and b (..., m, 1): log2(length) products."""
    if not is_traced(A):
        return _double_columns(A, b, length)
    if plain.is_chosen():
        impulse = torch.cat([b.mT, b.new_zeros(*b.shape[:-2], length, b.shape[-2])], -2).narrow(-2, 0, length)
        return plain.dense_scan(A.mT, impulse).mT
    found: Tensor = _krylov(A, b, length)
    return found


def _double_columns(A: Tensor, b: Tensor, length: int) -> Tensor:
    powers = b
    while powers.shape[-1] < length:
        powers = torch.cat([powers, A @ powers], -1)
        A = A @ A
    return powers[..., :length]


@torch.library.custom_op("resolvent::krylov", mutates_args=())
def _krylov(A: Tensor, b: Tensor, length: int) -> Tensor:
    return _double_columns(A, b, length).clone()


@torch.library.custom_op("resolvent::krylov_backward", mutates_args=())
def _krylov_backward(g: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    with recording():
        given = A.detach().requires_grad_(), b.detach().requires_grad_()
        gA, gb = torch.autograd.grad(_double_columns(*given, g.shape[-1]), given, g)
    return gA.contiguous(), gb.contiguous()


@_krylov.register_fake
def _(A: Tensor, b: Tensor, length: int) -> Tensor:
    return A.new_empty(*A.shape[:-1], length)


@_krylov_backward.register_fake
def _(g: Tensor, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), b.new_empty(b.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    A, b, ctx.length = inputs
    ctx.save_for_backward(A, b)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    A, b = ctx.saved_tensors
    if torch.is_grad_enabled():
        again = lambda A, b: (_double_columns(A, b, ctx.length),)  # noqa: E731
        return *gradients_by_graph(again, (A, b), (g,), ctx.needs_input_grad[:2]), None
    return *_krylov_backward(g, A, b), None


_krylov.register_autograd(_gradients, setup_context=_save)
one_by_one(_krylov)
one_by_one(_krylov_backward)
