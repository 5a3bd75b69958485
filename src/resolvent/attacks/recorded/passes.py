"""A model's forward pass, or its gradient in x, as one CUDA graph: attacks call these thousands of times.

A slightly smaller batch than the recorded one fills its first rows; the results of the other rows are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.attacks.objective.slope import CLOSED
from resolvent.attacks.recorded.recorder import Recorder, pad

if TYPE_CHECKING:
    from resolvent.attacks.objective.objective import Objective

PATIENCE = 40  # ordinary passes of one size before one is recorded, which costs about as much
MOST = 12  # most recordings of passes; the oldest is replaced
ROOM = 0.75  # least share of a recording's rows to be used

Found = tuple[Tensor, ...]
Given = tuple[Tensor, Tensor | None, "Objective | None", list[Tensor]]  # x, lengths, objective, labels


def run_recorded(recorder: Recorder, given: Given, plain: Callable[..., Found]) -> Found:
    """`plain(*given)`, by its recording if there is one; without an objective, only the outputs."""
    given = given[0], given[1], _settle(given[2]), given[3]
    if not _is_wanted(recorder, given):
        return plain(*given)
    name, count = _name(given), len(given[0])
    sizes = recorder.kept.setdefault(name, {})
    rows = min((rows for rows in sizes if ROOM * rows <= count <= rows), default=0)
    if rows:
        recorder.victim.forwards += count
        recorder.victim.backwards += count * (given[2] is not None)
        again: Found = sizes[rows].run(given)
        return again
    found, rows = recorder.watch(lambda: plain(*given), given[0]), pad(count, recorder.victim.batch_size)
    calls = recorder.calls[name, rows] = recorder.calls.get((name, rows), 0) + 1
    if calls >= PATIENCE:
        recorder.calls[name, rows] = 0
        made = recorder.make(lambda: Pass(given, found, rows, plain))
        if made is not None:
            sizes[rows] = made
            _make_room(recorder)
    return found


class Pass:
    """One pass over `rows` samples at fixed addresses."""

    def __init__(self, given: Given, found: Found, rows: int, plain: Callable[..., Found]) -> None:
        x, lengths, self.objective, labels = given
        self.padded = lengths is not None
        own = torch.arange(rows, device=x.device).clamp_max_(len(x) - 1)
        self.places = [t.detach()[own].contiguous() for t in (x, *labels, *([] if lengths is None else [lengths]))]
        self.found = [torch.zeros(rows, *t.shape[1:], dtype=t.dtype, device=t.device) for t in found]
        self.plain = plain
        self.graph: Any = None
        self.state, self.inputs = [*self.places, *self.found], self.places[:1]

    def work(self) -> None:
        x, *labels = self.places
        lengths = labels.pop() if self.padded else None
        found = self.plain(x, lengths, self.objective, labels)
        for place, new in zip(self.found, found, strict=True):
            place.copy_(new)

    def run(self, given: Given) -> Found:
        x, lengths, _, labels = given
        for place, new in zip(self.places, (x, *labels, *([] if lengths is None else [lengths])), strict=True):
            place[: len(new)].copy_(new)
        self.graph.replay()
        return tuple(t[: len(x)].clone() for t in self.found)


def _settle(objective: Any) -> Any:
    """The final objective of a `Fitted` one, once that has seen logits."""
    settled = getattr(objective, "settled", None)
    return objective if settled is None else settled() or objective


def _is_wanted(recorder: Recorder, given: Given) -> bool:
    x, _, objective, labels = given
    if not len(x) or not recorder.is_ready(x):
        return False
    if objective is None:
        return True
    return objective in CLOSED and not any(t.is_floating_point() for t in labels)


def _name(given: Given) -> Hashable:
    """The key of a recording, apart from its size."""
    x, lengths, objective, labels = given
    tensors = (x, *labels, *(() if lengths is None else (lengths,)))
    return objective, lengths is None, *((t.shape[1:], t.dtype, t.device) for t in tensors)


def _make_room(recorder: Recorder) -> None:
    full = [sizes for sizes in recorder.kept.values() if sizes]
    if sum(map(len, full)) > MOST:
        del full[0][next(iter(full[0]))]
