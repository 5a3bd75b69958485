"""Cases that GPU kernels do not support fall back to torch: logged once per reason, never on a CPU."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
TAKEN = (torch.bfloat16, torch.float32)  # supported by the kernels of pointwise operations and attention
ABSENT = "anything without Triton, which is not installed or too old"


def left_to_torch(x: Any, op: str, what: str, level: int = logging.WARNING) -> None:
    """Log that `op` on x, a tensor, falls back to torch because its kernels do not support `what`.

    `what` names the kind of case without numbers, so that it is logged once. A lower `level` is for cases by
    choice, where torch operations are faster.
    """
    if x.is_cuda and not torch.compiler.is_compiling():
        _say_once(op, what, level)


@cache
def _say_once(op: str, what: str, level: int) -> None:
    log.log(level, "%s: the GPU's own kernels do not take %s; torch's operations run in their place", op, what)


def kernels(home: str, name: str, x: Tensor, unfit: str | None = None, op: str = "") -> Any:
    """The Triton kernels `name` in ops/`home` for x; None where they do not apply, which is logged once on a GPU.

    `unfit` describes what is unsupported about x's shape; `op` is the operation, if it has another name.
    """
    if not x.is_cuda:
        return None
    op = op or name
    if x.dtype not in TAKEN:
        return left_to_torch(x, op, str(x.dtype), logging.INFO)
    if unfit is not None:
        return left_to_torch(x, op, unfit)
    found = triton_module(f"ops.{home}.{name}_triton")
    if found is None:
        left_to_torch(x, op, ABSENT)
    return found


def triton_module(place: str) -> Any:
    """The module of kernels at resolvent.`place`; None if Triton is not installed, or too old."""
    try:
        return import_module(f"resolvent.{place}")
    except ImportError:
        return None
