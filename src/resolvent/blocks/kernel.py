"""A Triton kernel, or torch's operations where it does not serve, or cannot be compiled or launched on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from resolvent.scan.fallback import ABSENT, left_to_torch

TAKEN = (torch.bfloat16, torch.float32)


def quick(name: str, run: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`run`; where Triton fails there (a device with less on chip), `other` from then on, which is said once."""
    from resolvent.scan.linear_triton import tried  # Triton comes with a CUDA build of torch, and is never required

    return tried(name, run, other)


def kernels(name: str, x: Tensor, unfit: str | None = None) -> Any:
    """The Triton kernels of the part `name` for x, or None where they do not serve; on a GPU that is said once.

    `unfit` is what they do not take of x's shape, in words.
    """
    if not x.is_cuda:
        return None
    if x.dtype not in TAKEN:
        return left_to_torch(x, name, str(x.dtype), logging.INFO)
    if unfit is not None:
        return left_to_torch(x, name, unfit)
    try:
        return import_module(f"resolvent.blocks.{name}_triton")
    except ImportError:
        return left_to_torch(x, name, ABSENT)
