"""Objectives with their gradients in the logits, in closed form: the start of a backward pass through the model.

A graph of a dozen small operations per batch costs more than their arithmetic. Other objectives are differentiated
by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import (
    TINY,
    Objective,
    cross_entropy,
    dlr,
    margin,
    pick,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)

Slope = Callable[..., tuple[Tensor, Tensor]]  # (logits, *labels) -> objective (b,), its gradient (b, classes)


def slope_of(objective: Objective) -> Slope | None:
    """`value, gradient = slope_of(objective)(logits, *labels)`; None if no closed form is known."""
    own = getattr(objective, "closed_slope", None)  # wrappers of objectives define it themselves
    return next((slope for known, slope in _SLOPES if known is objective), None) if own is None else own()


def backward_start(objective: Objective, output: Tensor, labels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The objective's values, and the start of a backward pass: a tensor and the gradient of their sum in it."""
    slope = slope_of(objective)
    if slope is None or output.dim() != 2 or any(label.is_floating_point() for label in labels):
        values = objective(output, *labels)
        return values, values, torch.ones_like(values)
    values, start = slope(output.detach(), *labels)
    return values, output, start


def _cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(z) - e_y."""
    log_p = logits.log_softmax(1)
    return -pick(log_p, y), _add_entries(log_p.exp(), [(y, -1.0)])


def _targeted_cross_entropy(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    value, slope = _cross_entropy(logits, target)
    return -value, -slope


def _margin(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """e_j - e_y for the best wrong class j; ties share equally."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    best = others.amax(1, keepdim=True)
    share = (others == best).to(logits.dtype)
    return best.squeeze(1) - pick(logits, y), _add_entries(share / share.sum(1, keepdim=True), [(y, -1.0)])


def _targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """e_t - e_y."""
    slope = _add_entries(torch.zeros_like(logits), [(target, 1.0), (y, -1.0)])
    return pick(logits, target) - pick(logits, y), slope


def _dlr(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return _ratio(logits, *_margin(logits, y), (1.0, 0.0, -1.0))


def _targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return _ratio(logits, *_targeted_margin(logits, y, target), (1.0, 0.0, -0.5, -0.5))


def _ratio(logits: Tensor, gap: Tensor, slope: Tensor, weights: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """gap / w for w = sum_i weights_i z_(i), z_(1) largest: its gradient is (gap' - (gap / w) w') / w."""
    top, order = logits.topk(len(weights), dim=1)
    by = _row(weights, logits.dtype, logits.device)
    width = (top * by).sum(1, keepdim=True) + TINY
    value = gap[:, None] / width
    return value.squeeze(1), slope.div_(width).scatter_add_(1, order, value / width * -by)


@cache
def _row(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(weights, dtype=dtype, device=device)


def _add_entries(slope: Tensor, entries: list[tuple[Tensor, float]]) -> Tensor:
    for y, amount in entries:
        slope.scatter_add_(1, y[:, None], torch.full_like(slope[:, :1], amount))
    return slope


_SLOPES: tuple[tuple[Objective, Slope], ...] = (
    (cross_entropy, _cross_entropy),
    (targeted_cross_entropy, _targeted_cross_entropy),
    (margin, _margin),
    (targeted_margin, _targeted_margin),
    (dlr, _dlr),
    (targeted_dlr, _targeted_dlr),
)
CLOSED = tuple(objective for objective, _ in _SLOPES)


# -- through the model -------------------------------------------------------------------------------------------------


def slope(end: Tensor, x: Tensor, start: Tensor | None = None, keep: bool = False) -> Tensor | None:
    """∂end/∂x with the gradient `start` of end; None if end does not depend on x. `keep` retains the graph.

    Runs in the dtypes chosen by the forward pass: a backward pass inside autocast would cast anew, and recurrences that
    deliberately stay in float32 would lose precision.
    """
    with torch.autocast(x.device.type, enabled=False):
        (found,) = torch.autograd.grad(
            [end], [x], None if start is None else [start], retain_graph=keep, allow_unused=True
        )
    return found
