"""The reference loop as a backend, so that it can be forced; its backward is autograd through the loop."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops.selective_scan.compose import Gradients
from resolvent.ops.selective_scan.inputs import Inputs, each
from resolvent.ops.selective_scan.reference import selective_reference
from resolvent.ops.selective_scan.torch import in_chunks


def forward(x: Inputs, reverse: bool, save: bool, reset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """y (b, l, d), the last state (b, d, n) and the states before each chunk (b, chunks, n, d), none unless `save`."""
    return in_chunks(selective_reference, x, reverse, save, reset)


def backward(x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None = None) -> Gradients:
    """Gradients of every input from those of y and of the last state; the saved states are not needed."""
    with torch.enable_grad():
        leaves = each(lambda t: t.detach().requires_grad_(), x)
        outputs = selective_reference(leaves, reverse, reset)
    wanted = [t for t in leaves if t is not None]
    found = iter(torch.autograd.grad(outputs, wanted, (gy, gh)))
    return tuple(None if t is None else next(found) for t in x)
