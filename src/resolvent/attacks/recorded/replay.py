"""Work on tensors at fixed addresses, recorded after a check that it is deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks.recorded.marks import read_all, read_generators
from resolvent.runtime.graph.cuda_graph import GRAPHS

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}  # replay against direct run, relative to the largest value
_HALF = 1e-2
_OTHER = 0.9375  # scale of the altered inputs


class Unsteady(RuntimeError):
    """The work must not be recorded."""


def record(module: nn.Module, work: Callable[[], None], state: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
    """A graph of `work`, which includes a pass of the module and reads and writes `state`; the state is restored.

    The work runs twice from the same state, the second time with other values in the later rows of `inputs`, which are
    part of the state. The first rows must agree, whatever fills the batch, and the module must not change; the replay
    must agree, too, and once more from other values in all rows.
    """
    start, device = [t.clone() for t in state], state[0].device
    count = len(inputs[0])
    kept = (count + 1) // 2

    def run(begin: Sequence[Tensor], way: Callable[[], None]) -> list[Tensor]:
        _put(state, begin)
        way()
        return [t.clone() for t in state]

    try:
        GRAPHS[device.type].aside(work, device)  # creates whatever a first pass creates
        before = read_all(module), read_generators(device)
        want = run(start, work)
        other, mixed = (_vary(state, start, inputs, rows) for rows in (0, kept))
        again = run(mixed, work)
        if (read_all(module), read_generators(device)) != before:
            raise Unsteady("a pass changes something in it, or draws random numbers")
        if not _agree([t[:kept] for t in again if len(t) == count], [t[:kept] for t in want if len(t) == count]):
            raise Unsteady("two passes over the same numbers differ, or with other samples beside them")
        turned = run(other, work)
        _put(state, start)
        graph = GRAPHS[device.type](work, device)
        if not (_agree(run(start, graph.replay), want) and _agree(run(other, graph.replay), turned)):
            raise Unsteady("its replay gives other numbers")
        return graph
    finally:
        _put(state, start)


def _put(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for t, value in zip(state, values, strict=True):
        t.copy_(value)


def _vary(state: Sequence[Tensor], start: Sequence[Tensor], inputs: Sequence[Tensor], kept: int) -> list[Tensor]:
    """`start` with other similar values in all but the first rows of the inputs, without random numbers."""
    turned = (any(t is own for own in inputs) for t in state)
    return [torch.cat([s[:kept], s.flip(0)[kept:] * _OTHER]) if t else s for t, s in zip(turned, start, strict=True)]


def _agree(found: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    return all(map(_is_close, found, want))


def _is_close(x: Tensor, y: Tensor) -> bool:
    if not y.is_floating_point():
        return torch.equal(x, y)
    x, most = x.double(), CLOSE.get(y.dtype, _HALF)
    y = y.double()
    size = torch.where(y.isfinite(), y.abs(), 0.0).amax() if y.numel() else y.sum()
    near = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= most * size)
    return bool(near.all())
