"""What the kernels of a GPU do not take runs in torch's operations: said once for each reason, and never on a CPU."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
TAKEN = (torch.bfloat16, torch.float32)  # what the kernels of pointwise operations and attention take
ABSENT = "anything without Triton, which is not installed or too old"


def left_to_torch(x: Any, op: str, what: str, level: int = logging.WARNING) -> None:
    """Say that `op` on x, a tensor, runs in torch's operations because its kernels do not take `what`.

    `what` names the kind and no numbers of its own, so that a kind is told once. A lower `level` is for what is so by
    choice: where torch's operations are the quicker ones.
    """
    if x.is_cuda and not torch.compiler.is_compiling():
        _say_once(op, what, level)


@cache
def _say_once(op: str, what: str, level: int) -> None:
    log.log(level, "%s: the GPU's own kernels do not take %s; torch's operations run in their place", op, what)


def kernels(home: str, name: str, x: Tensor, unfit: str | None = None) -> Any:
    """The Triton kernels `name` in ops/`home` for x; None where they do not serve, which is said once on a GPU.

    `unfit` is what they do not take of x's shape, in words.
    """
    if not x.is_cuda:
        return None
    if x.dtype not in TAKEN:
        return left_to_torch(x, name, str(x.dtype), logging.INFO)
    if unfit is not None:
        return left_to_torch(x, name, unfit)
    found = triton_module(f"ops.{home}.{name}_triton")
    if found is None:
        left_to_torch(x, name, ABSENT)
    return found


def triton_module(place: str) -> Any:
    """The module of kernels at resolvent.`place`; None where Triton is not installed, or too old for them."""
    try:
        return import_module(f"resolvent.{place}")
    except ImportError:
        return None
