"""Who besides autograd is at work around a call: what a kernel of ours cannot serve."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """Whether `torch.func` is at work."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether tangents travel along."""
    return forward_ad._current_level >= 0


def batched(*tensors: Tensor | None) -> bool:
    """Whether the older vmap is active, which `torch.autograd.grad(is_grads_batched=True)` still uses.

    It knows no rule of ours, but takes an operator apart into one call per sample.
    """
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)
