"""What the tests of packed documents share: marks drawn at random, and each document run alone by the reference."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.ops.selective_scan.reference import selective_reference


def marks(*shape: int, often: float = 0.3) -> Tensor:
    """Random first steps."""
    return torch.rand(shape) < often


def documents(start: Tensor, reverse: bool) -> list[slice]:
    """The documents of one row (l,), in the order of the scan."""
    l = len(start)
    edges = [0, *(t for t in range(1, l) if start[t]), l]
    found = [slice(s, e) for s, e in pairwise(edges)]
    return found[::-1] if reverse else found


def linear_alone(a: Tensor, b: Tensor, h0: Tensor | None, start: Tensor, reverse: bool) -> Tensor:
    """b (r, l, n), start (r, l): each document by itself; h0 enters the first of the scan, unless that begins there."""
    a = a.expand(b.shape)
    rows = []
    for r in range(b.shape[0]):
        parts = documents(start[r], reverse)
        begins = bool(start[r, 0]) and not reverse
        state = None if h0 is None or begins else h0[r]
        out = [reference_scan(a[r, p], b[r, p], state if p is parts[0] else None, reverse) for p in parts]
        rows.append(torch.cat(out[::-1] if reverse else out))
    return torch.stack(rows)


def selective_alone(x: Inputs, start: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The same for the selective scan, start (b, l)."""
    ys, ends = [], []
    for r in range(x.u.shape[0]):
        parts = documents(start[r], reverse)
        state = None if x.h0 is None or (bool(start[r, 0]) and not reverse) else x.h0[r : r + 1]
        out = [selective_reference(_cut(x, r, p, state if p is parts[0] else None), reverse) for p in parts]
        ys.append(torch.cat([y for y, _ in (out[::-1] if reverse else out)], 1))
        ends.append(out[-1][1])
    return torch.cat(ys), torch.cat(ends)


def _cut(x: Inputs, r: int, part: slice, state: Tensor | None) -> Inputs:
    u, dt, B, C = (t[r : r + 1, part] for t in (x.u, x.dt, x.B, x.C))
    z = None if x.z is None else x.z[r : r + 1, part]
    return Inputs(u, dt, x.A, B, C, x.D, z, state)
