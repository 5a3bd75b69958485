"""The selective scan in torch operations, chunk by chunk, on any device.

Only one chunk's states (b, CHUNK, d, n) exist at a time. The forward saves the state before each chunk; the backward
processes the chunks from the last to the first and recomputes each one's states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from resolvent.ops.selective_scan.compose import Gradients, adjoint, scan
from resolvent.ops.selective_scan.inputs import CHUNK, Inputs, each, states_to_save

Scan = Callable[[Inputs, bool, Tensor | None], tuple[Tensor, Tensor]]


def forward(x: Inputs, reverse: bool, save: bool, reset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """y (b, l, d), the last state (b, d, n) and the states before each chunk (b, chunks, n, d), none unless `save`."""
    return in_chunks(scan, x, reverse, save, reset)


def in_chunks(
    scan_chunk: Scan, x: Inputs, reverse: bool, save: bool, reset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with any implementation of one chunk's scan."""
    y = x.u.new_empty(x.u.shape)
    h = x.u.new_zeros(x.u.shape[0], *x.A.shape) if x.h0 is None else x.h0
    saved = states_to_save(x, save)
    for i, part in enumerate(_parts(x.u.shape[1], reverse)):
        if save:
            saved[:, i] = h.transpose(1, 2)
        y[:, part], h = scan_chunk(_cut(x, part, h), reverse, _within(reset, part))
    return y, h.clone(), saved


def backward(x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None = None) -> Gradients:
    """Gradients of every input from those of y and of the last state."""
    whole = each(lambda t: t.new_zeros(t.shape), x)
    parts = _parts(x.u.shape[1], reverse)
    for i in reversed(range(len(parts))):
        h = saved[:, i].transpose(1, 2)  # (b, d, n)
        marks = _within(reset, parts[i])
        values: tuple[Any, ...] = adjoint(_cut(x, parts[i], h), gy[:, parts[i]], gh, reverse, marks)
        g = Inputs(*values)
        _add(whole, g, parts[i])
        gh = gh if g.h0 is None else g.h0  # a chunk always starts from a state
    return *whole[:7], (None if x.h0 is None else gh)


def _parts(length: int, reverse: bool) -> list[slice]:
    """The chunks in the order of the scan; a reverse scan starts with the last steps."""
    cuts = [(t, min(t + CHUNK, length)) for t in range(0, length, CHUNK)]
    return [slice(length - stop, length - start) if reverse else slice(start, stop) for start, stop in cuts]


def _cut(x: Inputs, part: slice, h: Tensor) -> Inputs:
    z = None if x.z is None else x.z[:, part]
    return Inputs(x.u[:, part], x.dt[:, part], x.A, x.B[:, part], x.C[:, part], x.D, z, h)


def _within(reset: Tensor | None, part: slice) -> Tensor | None:
    return None if reset is None else reset[:, part]


def _add(whole: Inputs, g: Inputs, part: slice) -> None:
    for name in ("u", "dt", "B", "C", "z"):
        target = getattr(whole, name)
        if target is not None:
            target[:, part] = getattr(g, name)
    whole.A.add_(g.A)
    if whole.D is not None and g.D is not None:
        whole.D.add_(g.D)
