"""Work on tensors at fixed places, recorded once it has shown that the same numbers give the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks.recorded.marks import read_all, read_generators
from resolvent.runtime.graph.cuda_graph import GRAPHS

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of a replay to the work itself, by the largest value
_HALF = 1e-2
_OTHER = 0.9375  # what turned numbers are scaled by


class Unsteady(RuntimeError):
    """What must not be recorded."""


def record(module: nn.Module, work: Callable[[], None], state: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
    """A graph of `work`, which reads and writes `state`, a pass of the module among it; the state is left as it was.

    The work runs twice from the same state and must end alike, with nothing changed in the module; its replay must end
    there, too, and once more from other numbers in `inputs`, which are some of the state.
    """
    start, device = [t.clone() for t in state], state[0].device

    def run(begin: Sequence[Tensor], way: Callable[[], None]) -> list[Tensor]:
        _put(state, begin)
        way()
        return [t.clone() for t in state]

    try:
        GRAPHS[device.type].aside(work, device)  # what comes into being at a first pass is there then
        before = read_all(module), read_generators(device)
        want = run(start, work)
        again = run(start, work)
        if (read_all(module), read_generators(device)) != before:
            raise Unsteady("a pass changes something in it, or draws random numbers")
        if not _agree(want, again):
            raise Unsteady("two passes over the same numbers differ")
        other = [_turn(t) if any(t is own for own in inputs) else s for t, s in zip(state, start, strict=True)]
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


def _turn(x: Tensor) -> Tensor:
    """Other numbers of the same kind, without a draw."""
    return x.flip(0) * _OTHER


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
