"""FAB's step on a GPU by replay: both model passes and the operations between them are one CUDA graph."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.attacks.fab.linear import Spots, towards
from resolvent.attacks.fab.walk import Walk
from resolvent.attacks.recorded.recorder import Recorder, pad

if TYPE_CHECKING:
    from resolvent.attacks.fab.attack import Hunt

WORTH = 40  # fewest remaining steps for which recording pays
_ROOM = 0.75  # least share of a recording's samples that must be present
_MOVING = ("at", "best", "distance", "odd")
_FIXED = ("x", "eps", "low", "high", "free")


class Step:
    """One step of `rows` samples with k walkers each, at fixed addresses, up to the model pass at the new positions."""

    def __init__(self, hunt: Hunt, walk: Walk, spots: Spots, target: Tensor, rows: int) -> None:
        self.victim, self.pace = hunt.victim, hunt.settings.pace
        self.graph: Any = None
        k, device = target.shape[1], walk.at.device
        own = torch.arange(rows, device=device).clamp_max_(len(walk.at) - 1)
        each = (own[:, None] * k + torch.arange(k, device=device)).flatten()
        self.shape = spots.x.shape[1:]
        self.walk = walk.select(own)
        self.walk.low, self.walk.high = self.walk.low.clone(), self.walk.high.clone()  # which were shared
        self.target, self.y = target[own], spots.y[each]
        self.lengths = None if spots.lengths is None else spots.lengths[each]
        self.logits = hunt.clean.new_zeros(rows, k, hunt.clean.shape[1])
        self.walker = torch.zeros(rows, dtype=torch.int64, device=device)
        self.flat = torch.zeros(rows, dtype=torch.bool, device=device)
        self.state = [*(getattr(self.walk, name) for name in _MOVING), self.logits, self.walker, self.flat]
        self.inputs = [self.walk.at]

    def serves(self, walk: Walk, target: Tensor) -> bool:
        rows, k = self.target.shape
        return k == target.shape[1] and _ROOM * rows <= len(walk.at) <= rows

    def run(self, walk: Walk, spots: Spots, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Move the walkers, whose tensors become views of the fixed buffers; returns (walker, logits, flat)."""
        count = len(walk.at)
        if walk.at.data_ptr() != self.walk.at.data_ptr():
            self._load(walk, spots, target)
        self.graph.replay()
        for name in _MOVING:
            setattr(walk, name, getattr(self.walk, name)[:count])
        self.victim.forwards += 2 * len(spots.x)
        self.victim.backwards += len(spots.x)
        return self.walker[:count], self.logits[:count], self.flat[:count]

    def _load(self, walk: Walk, spots: Spots, target: Tensor) -> None:
        pairs = [(getattr(self.walk, name), getattr(walk, name)) for name in (*_MOVING, *_FIXED)]
        pairs += [(self.target, target), (self.y, spots.y), (self.lengths, spots.lengths)]
        for place, new in pairs:
            if new is not None and place.data_ptr() != new.data_ptr():  # bounds shared by all samples
                place[: len(new)].copy_(new)

    def work(self) -> None:
        walk = replace(self.walk)
        spots = Spots(walk.at.reshape(-1, *self.shape), self.y, self.lengths)
        gap, slope, _ = towards(self.victim, spots, self.target.flatten())
        gap, slope = gap.view(walk.at.shape[:2]).to(walk.at.dtype), slope.reshape(walk.at.shape)
        self.flat.copy_(walk.is_flat(slope))
        walk.step(gap, slope, self.pace)
        logits = self.victim.forward(walk.at.reshape(-1, *self.shape), self.lengths).view(self.logits.shape)
        self.walker.copy_(walk.across(logits, self.y.view(self.target.shape), self.pace))
        self.logits.copy_(logits)
        for name in _MOVING:
            getattr(self.walk, name).copy_(getattr(walk, name))


def find_step(
    recorder: Recorder, hunt: Hunt, walk: Walk, spots: Spots, target: Tensor | None, left: int
) -> Step | None:
    """A recorded step for these walkers, made if the `left` remaining steps justify it; None if there is none."""
    if target is None or spots.scale is not None or not recorder.is_ready(walk.at):
        return None
    name = _name(hunt, walk, spots, target)
    own: Step | None = recorder.steps.get(name)
    if own is not None and own.serves(walk, target):
        return own
    if left < WORTH:
        return None
    most = recorder.victim.batch_size
    recorder.steps.pop(name, None)  # its memory is reused
    rows = pad(len(walk.at), None if most is None else most // target.shape[1])
    own = recorder.make(lambda: Step(hunt, walk, spots, target, rows))
    if own is not None:
        recorder.steps[name] = own
    return own


def _name(hunt: Hunt, walk: Walk, spots: Spots, target: Tensor) -> Hashable:
    """The key of a recording, apart from the number of samples."""
    tensors = [walk.at, *(getattr(walk, name) for name in _FIXED), spots.x, spots.lengths, hunt.clean]
    kinds = [None if t is None else (t.shape[1:], t.dtype) for t in tensors]
    shared = [len(bound) == 1 for bound in (walk.low, walk.high)]
    return "fab", target.shape[1], hunt.settings.pace, walk.threat.norm, *shared, *kinds
