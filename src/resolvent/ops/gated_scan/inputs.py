"""The inputs of the gated scan, checked once.

Shape letters: b batch, l length, d channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.ops.checks import check_real

HALF = (torch.bfloat16, torch.float16)


class Inputs(NamedTuple):
    """The arguments of one scan, in the order of the public function."""

    p: Tensor  # (b, l, d) before the sigmoid of the recurrence gate
    q: Tensor  # (b, l, d) before the sigmoid of the input gate
    x: Tensor  # (b, l, d)
    rate: Tensor  # (d,) log a at r = 1, not positive
    h0: Tensor | None = None  # (b, d)
    start: Tensor | None = None  # (b,) or (b, l) bool
    reverse: bool = False


def accumulator(x: Inputs) -> torch.dtype:
    """The dtype of gates and states: the widest of the inputs, never half."""
    dtype = torch.float32 if x.x.dtype in HALF else x.x.dtype
    for t in (x.p, x.q, x.rate, x.h0):
        if t is not None and t.dtype != dtype:
            dtype = torch.promote_types(dtype, t.dtype)
    return dtype


def check(x: Inputs, start: Tensor | None = None, first: Tensor | None = None) -> None:
    """Refuse shapes, dtypes and devices that do not fit together, and `start` given twice."""
    for name in ("x", "p", "q", "rate", "h0"):
        check_real("gated_scan", name, getattr(x, name), ("x", x.x), optional=name == "h0")
    if x.x.dim() != 3:
        raise ValueError(f"gated_scan: expected x of shape (b, l, d), got {tuple(x.x.shape)}; add an axis.")
    b, l, d = x.x.shape
    for name, shape in {"p": (b, l, d), "q": (b, l, d), "rate": (d,), "h0": (b, d)}.items():
        tensor = getattr(x, name)
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"gated_scan: expected {name} of shape {shape} for x {(b, l, d)}, got {tuple(tensor.shape)}; "
                "expand or transpose it."
            )
    if start is not None and first is not None:
        raise ValueError("gated_scan: expected start or first, got both; mark the first steps in start too.")
    if start is not None:
        _check_marks("start", start, x.x.shape[:2], x.x)
    if first is not None:
        _check_marks("first", first, x.x.shape[:1], x.x)


def _check_marks(name: str, marks: Tensor, shape: torch.Size, x: Tensor) -> None:
    if not isinstance(marks, Tensor) or marks.dtype != torch.bool:
        kind = marks.dtype if isinstance(marks, Tensor) else type(marks).__name__
        raise TypeError(f"gated_scan: expected {name} as a tensor of bool, got {kind}; compare it with 0 first.")
    if marks.shape != shape:
        shared = f"; give marks that all rows share as start.expand{tuple(shape)}, flags of first steps alone as first"
        more = shared if name == "start" else "; give one flag for each row"
        raise ValueError(f"gated_scan: expected {name} of shape {tuple(shape)}, got {tuple(marks.shape)}{more}.")
    if marks.device != x.device:
        raise ValueError(f"gated_scan: expected {name} on {x.device} like x, got {marks.device}; move it there.")
