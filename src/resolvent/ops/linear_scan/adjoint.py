"""The adjoint of the linear scan, written with the scan itself: see `linear` for the formulas.

a has the rank of b and differs from its shape in size-1 axes before the last only; h0 is (..., n). `reset` (..., l),
if given, says where the state is reset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.packed import clear_starts

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


def gradients(
    scan: Callable[..., Tensor], fused: Callable[..., tuple[Tensor, Tensor]] | None, g: Tensor, ctx: Any
) -> Grads:
    """(∂a, ∂b, ∂h0) as needed: by the fused kernel, or where it is None by a differentiable graph."""
    a, h, h0, reset = ctx.saved_tensors
    for_a, _, for_h0 = ctx.needs_input_grad[:3]
    ga: Tensor | None
    if for_a and fused is not None:
        ga, gb = fused(g, a, h, h0, ctx.reverse, reset)
    else:
        ga, gb = _graph_grads(scan, g, (a, h, h0, reset), ctx.reverse, for_a)
    gh0 = None
    if for_h0:
        gh0 = _initial_grad(gb, a, reset, ctx.reverse) if h.shape[-2] else torch.zeros_like(h0)
    return ga, gb, gh0


def _graph_grads(
    scan: Callable[..., Tensor], g: Tensor, saved: tuple[Tensor, ...], reverse: bool, for_a: bool
) -> tuple[Tensor | None, Tensor]:
    """(∂a or None, ∂b) as a graph of differentiable operations."""
    a, h, h0, reset = saved
    gamma = adjoint(scan, g, a if reset is None else clear_starts(a, reset), reverse) if h.numel() else g
    if not for_a:
        return None, gamma
    if h.numel() == 0:
        return torch.zeros_like(a), gamma
    ga = gamma * previous(h, h0, reverse).conj()
    return (ga if reset is None else clear_starts(ga, reset)).sum_to_size(a.shape), gamma


def previous(h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_{t-1} for every t, with h0 (or zero) before the first: (..., l, n)."""
    first = torch.zeros_like(h[..., :1, :]) if h0 is None else h0.unsqueeze(-2)
    return torch.cat((h[..., 1:, :], first), -2) if reverse else torch.cat((first, h[..., :-1, :]), -2)


def adjoint(scan: Callable[..., Tensor], g: Tensor, a: Tensor, reverse: bool) -> Tensor:
    """γ: the scan of g in the other direction with the conjugate multiplier of the next step."""
    a = a.conj().resolve_conj()
    if a.shape[-2] > 1:
        a = a.roll(1 if reverse else -1, -2)  # what wraps around multiplies the zero state
    return scan(a, g, None, not reverse)


def _initial_grad(gamma: Tensor, a: Tensor, reset: Tensor | None, reverse: bool) -> Tensor:
    """∂h0 (..., n)."""
    t = -1 if reverse else 0
    first = a[..., t, :] if reset is None else torch.where(reset[..., t, None], 0, a[..., t, :])
    return first.conj() * gamma[..., t, :]
