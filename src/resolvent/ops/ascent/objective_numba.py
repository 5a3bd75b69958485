"""Targeted objectives with their gradients in the logits on a CPU, compiled by numba: one call instead of a dozen.

They follow torch's form in `attacks.objective_slope`, and leave invalid input to it: compiled code would write
out of bounds where torch raises. Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from torch import Tensor

from resolvent.ops.ascent import TINY
from resolvent.runtime.memory import fresh_like, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share

_TOP = 4  # number of largest logits in targeted DLR
_plain: Any = njit(error_model="numpy")


def evaluate_targeted(logits: Tensor, y: Tensor, target: Tensor, ratio: bool) -> tuple[Tensor, Tensor] | None:
    """(values, slopes), or None for invalid labels or widths, which torch reports."""
    b, classes = logits.shape
    if not (_fits(y, b) and _fits(target, b)) or (ratio and classes < _TOP):
        return None
    given, slope = (plain(logits), plain(y), plain(target)), fresh_like(plain(logits))
    value, astray = torch.empty(b, dtype=logits.dtype), torch.zeros((), dtype=torch.int64)
    places = (v.data_ptr() for v in (*given, value, slope, astray))
    run(compile_for(_kernel, logits.dtype), (ratio, b, classes, *places), b, 1)
    return None if astray.item() else (value, slope)


def _fits(labels: Tensor, b: int) -> bool:
    return labels.dtype == torch.int64 and labels.shape == (b,) and labels.is_cpu


def _kernel(dtype: Any) -> Any:
    """One task per sample."""
    as_numpy = getattr(np, str(dtype))

    def body(p: Any) -> None:
        table = carray(p, HEAD + 9)
        first, end = share(table)
        ratio, b, classes, at_logits, at_y, at_target, at_value, at_slope, at_astray = table[HEAD:]
        logits, slope = carray(pointer(at_logits, dtype), (b, classes)), carray(pointer(at_slope, dtype), (b, classes))
        y, target = carray(pointer(at_y, types.int64), b), carray(pointer(at_target, types.int64), b)
        value, top = carray(pointer(at_value, dtype), b), np.empty(_TOP, np.int64)
        astray = carray(pointer(at_astray, types.int64), 1)
        for i in range(first, end):
            if not (0 <= y[i] < classes and 0 <= target[i] < classes):
                astray[0] = 1
                continue
            z, pull, one = logits[i], slope[i], as_numpy(1)
            gap = z[target[i]] - z[y[i]]
            for j in range(classes):
                pull[j] = 0
            if ratio:
                _largest(z, top)
                width = z[top[0]] - (z[top[2]] + z[top[3]]) / as_numpy(2) + as_numpy(TINY)
                gap, one = gap / width, one / width
                share_of = gap / width
                pull[top[0]] -= share_of
                pull[top[2]] += share_of / as_numpy(2)
                pull[top[3]] += share_of / as_numpy(2)
            pull[target[i]] += one
            pull[y[i]] -= one
            value[i] = gap

    return kernel(body)


@_plain
def _largest(z: Any, top: Any) -> None:
    """The indices of the largest numbers, largest first; ties in index order."""
    found = 0
    for j in range(len(z)):
        at = found if found < len(top) else len(top) - 1
        if found == len(top) and not z[j] > z[top[at]]:
            continue
        while at > 0 and z[j] > z[top[at - 1]]:
            top[at] = top[at - 1]
            at -= 1
        top[at] = j
        found = min(found + 1, len(top))
