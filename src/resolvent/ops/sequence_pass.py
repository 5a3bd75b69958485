"""What operations share that run a layer over (b, l, d) on a GPU from a state h0, which may be None."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resolvent.runtime.transforms import gradients_by_graph

Run = Callable[[Tensor, Tensor | None, Sequence[Tensor]], tuple[Tensor, Tensor]]  # (x, h0, others) -> (y, last state)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b of matrices, or of batches of them, in float32, whatever their dtype."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype == torch.float32 or not a.is_cuda:
        return product(a.float(), b.float())
    return product(a, b, out_dtype=torch.float32)


def differentiate_by_graph(
    run: Run, x: Tensor, h0: Tensor | None, others: Sequence[Tensor], g: Sequence[Tensor | None], needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of x, h0 and the others as a graph, from those of y and the last state; `needs`: who asks."""
    starts = h0 is not None
    asked = [i for i, t in enumerate(g) if t is not None]

    def again(*own: Tensor) -> tuple[Tensor, ...]:
        found = run(own[0], own[1] if starts else None, own[1 + starts :])
        return tuple(found[i] for i in asked)

    given = [x, *([] if h0 is None else [h0]), *others]
    needed = [needs[0], *([needs[1]] if starts else []), *needs[2:]]
    slopes = list(gradients_by_graph(again, given, [t for t in g if t is not None], needed))
    return [slopes[0], slopes[1] if starts else None, *slopes[1 + starts :]]
