"""The gradient of an output in x, in the types that the forward pass chose.

Autocast is for forward passes: a backward pass that runs inside of it casts anew, and recurrences, which take care to
stay in float32, lose what they kept.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slope(end: Tensor, x: Tensor, start: Tensor | None = None, keep: bool = False) -> Tensor | None:
    """∂end/∂x with the gradient `start` of end; None where end does not depend on x. `keep` the graph for another."""
    with torch.autocast(x.device.type, enabled=False):
        (found,) = torch.autograd.grad(
            [end], [x], None if start is None else [start], retain_graph=keep, allow_unused=True
        )
    return found
