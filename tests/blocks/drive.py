"""Ways to run a causal module over a sequence: what must all give the same numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

F64 = torch.float64


def ready(module: Any, scale: float = 0.1) -> Any:
    """float64, eval mode, and off special starting values: a zero bias hides a missing one."""
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * scale)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return module


def in_chunks(run: Any, x: Tensor, cuts: list[int]) -> tuple[Tensor, Any]:
    outputs, state = [], None
    for piece in x.split(cuts, 1):
        y, state = run(piece, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def in_steps(step: Any, x: Tensor) -> tuple[Tensor, Any]:
    outputs, state = [], None
    for x_t in x.unbind(1):
        y_t, state = step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def gradients(y: Tensor, state: Any, wanted: Iterable[Tensor]) -> list[Tensor]:
    """Of a curved loss that sees every entry of the output and of the final state."""
    leaves = [y, *(t for t in tree_leaves(state) if t.is_floating_point() or t.is_complex())]
    total = sum(
        (torch.cos(torch.arange(t.numel(), dtype=F64).reshape(t.shape)) * t.abs().square()).sum() for t in leaves
    )
    return list(torch.autograd.grad(total, list(wanted), allow_unused=False))
