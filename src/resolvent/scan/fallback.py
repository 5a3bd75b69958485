"""What the kernels of a GPU do not take runs in torch's operations: said once for each reason, and never on a CPU."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch

log = logging.getLogger(__name__)
ABSENT = "anything without Triton, which is not installed or too old"


def left_to_torch(x: Any, op: str, what: str, level: int = logging.WARNING) -> None:
    """Say that `op` on x, a tensor, runs in torch's operations because its kernels do not take `what`.

    `what` names the kind and no numbers of its own, so that a kind is told once. A lower `level` is for what is so by
    choice: where torch's operations are the quicker ones.
    """
    if x.is_cuda and not torch.compiler.is_compiling():
        _said(op, what, level)


@cache
def _said(op: str, what: str, level: int) -> None:
    log.log(level, "%s: the GPU's own kernels do not take %s; torch's operations run in their place", op, what)
