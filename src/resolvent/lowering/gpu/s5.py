"""A residual block of S5 or LRU with channels first: a scan along time between two products, skip and norm.

    v = W_in x,    h = scan(lam, v),    y = W_out h + D x                       x, y (d, b, l), v, h (2p, b, l)

With nothing between layer and skip, D x is added to the skip: norm(x + y) = norm((1 + D) x + W_out h).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.lowering import columns
from resolvent.lowering.program import Node, Norm, Recurrence, Skip
from resolvent.ops.pointwise import Ending, ending, skip_norm
from resolvent.ops.projected_scan import fork_scan

AXIS = 0  # channel axis


class Weights(NamedTuple):
    lam: Tensor  # (p, 2)
    W_in: Tensor  # (2p, d)
    W_out: Tensor  # (d, 2p)
    D: Tensor | None  # (d, 1, 1), None where it is part of the skip
    end: Ending | None


def covers(node: Node) -> bool:
    if not columns.covers(node):
        return False
    match node.layer:
        case (Recurrence(kind="s5" | "lru", module=layer),):
            return not (layer.bidirectional or layer.check_finite)
    return False


def weights(block: Skip, length: int, dtype: torch.dtype) -> Weights:
    """Weights of the current parameters; differentiable if gradients are enabled."""
    layer: Any = block.layer[0].module
    lam_bar, W_in, W_out, D = layer.tables()
    end = None
    match block.norm:
        case (Norm(kind="layer", module=norm),) if block.adds and not block.prenorm:
            end = ending(norm, None if block.scale or block.mixer else 1 + D)
    rides = end is not None and end.scale is not None
    return Weights(
        torch.view_as_real(lam_bar), W_in.to(dtype), W_out.to(dtype), None if rides else D.to(dtype)[:, None, None], end
    )


def run(block: Skip, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    h = columns.norm(block.norm, x) if block.prenorm else x
    y, h = fork_scan(w.lam, w.W_in, w.W_out, h)
    if not block.prenorm:
        x = h  # the skip's gradient is added in the scan's own store
    if w.D is not None:
        y = columns.follow(block.branch[1:], torch.addcmul(y, h, w.D))
    if w.end is not None:
        return skip_norm(x, y, w.end, AXIS)
    return block.end(x, y, lambda y: columns.norm(block.norm, y))
