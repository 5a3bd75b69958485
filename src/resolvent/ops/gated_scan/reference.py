"""The gated scan in torch's operations: the reference, every device and dtype, every order and mode of derivative."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from resolvent.ops.gated_scan.inputs import Inputs, accumulator
from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.runtime.transforms import gradients_by_graph

SQRT_SLOPE = 1000.0  # the published bound on the derivative of the square root


def gated_reference(
    p: Tensor, q: Tensor, x: Tensor, rate: Tensor, h0: Tensor | None = None, start: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:  # fmt: skip
    """`gated_scan` by `gates` and `linear_scan`; half types are computed in float32."""
    wide = accumulator(Inputs(p, q, x, rate, h0))
    opened = None if start is None else opening(start, x.shape[1], reverse)[..., None]
    a, gain = gates(p.to(wide), q.to(wide), rate.to(wide), opened)
    h = linear_scan(a, gain * x.to(wide), None if h0 is None else h0.to(wide), reverse)
    return h.to(x.dtype)


def opening(start: Tensor, length: int, reverse: bool) -> Tensor:
    """(b, l): which steps are a document's first; `start` (b,) refers to the scan's first step."""
    if start.dim() == 2:
        return start
    front = length - 1 if reverse else 0
    return (torch.arange(length, device=start.device) == front) & start[:, None]


def gates(p: Tensor, q: Tensor, rate: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """a_t and sqrt(1 - a_t^2) i_t, both (..., d); `start` (..., 1) marks the first step of a document."""
    r, i = torch.sigmoid(p), torch.sigmoid(q)
    log_a = r * rate
    a = torch.exp(log_a)
    multiplier = clipped_sqrt(-torch.expm1(2 * log_a))  # no cancellation where a is near 1
    if start is not None:
        a, multiplier = a.masked_fill(start, 0), multiplier.masked_fill(start, 1)
    return a, multiplier * i


def clipped_sqrt(x: Tensor) -> Tensor:
    """sqrt(x) for x >= 0 whose derivative is min(1 / (2 sqrt(x)), 1000), finite at 0 (RecurrentGemma's rule).

    Made of plain operations, so every order and mode of derivative follows the clipped slope.
    """
    knee = 0.25 / SQRT_SLOPE**2  # where the derivative of the root reaches the bound
    root = torch.sqrt(x.clamp(min=knee))
    straight = torch.sqrt(x.detach()) + SQRT_SLOPE * (x - x.detach())  # the root's value with the bound as derivative
    return torch.where(x < knee, straight, root)


def gradients_again(x: Inputs, g: Tensor, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradients of p, q, x, rate and h0, recomputed; with a graph if they are differentiated themselves."""

    def again(p: Tensor, q: Tensor, u: Tensor, rate: Tensor, h0: Tensor | None) -> tuple[Tensor]:
        return (gated_reference(p, q, u, rate, h0, x.start, x.reverse),)

    return gradients_by_graph(again, (x.p, x.q, x.x, x.rate, x.h0), (g,), needs)
