"""Mapping a multiplier that broadcasts over leading axes to the rows of b, and summing its gradient."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


def multiplier_rows(a: Tensor, shape: torch.Size) -> tuple[Tensor, int]:
    """(a, div): row i of b, its leading axes taken together, uses row (i // div) % rows(a) of a.

    a is copied only if its broadcast axes are between others, which this rule cannot express.
    """
    source, div = row_rule(a.shape, shape)
    return a if source == a.shape else a.expand(source), div


def row_rule(a: torch.Size, shape: torch.Size) -> tuple[torch.Size, int]:
    """`multiplier_rows` from the shape of a alone: the shape to expand to, and div."""
    lead, wanted = a[:-2], shape[:-2]
    if lead == wanted:
        return a, 1
    own = [i for i, size in enumerate(lead) if size != 1]
    if not own:
        return a, 1
    first, end = own[0], own[-1] + 1
    if lead[first:end] == wanted[first:end]:
        return a, prod(wanted[end:])
    return torch.Size((*wanted, *a[-2:])), 1


def sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """x summed over the axes that `shape` broadcasts, in an order that does not depend on the number of threads.

    torch splits a sum over threads only if the result is a single number; computing two equal ones, of which one is
    dropped, avoids this.
    """
    if x.shape == shape:
        return x
    if prod(shape) == 1:
        return x.reshape(1, -1).expand(2, -1).sum(-1)[:1].reshape(shape)
    return x.sum_to_size(shape)
