"""Square's queries on a GPU by replays: window, model pass and decision of a query are one CUDA graph.

A query is some eighty short kernels, which take ten times longer to launch than to execute. Everything that changes
from query to query, such as the position in the deck, is read by the kernels from device memory; a block of queries
therefore runs without the host. Broken samples stay until the block ends, and so do padding rows: their results are
neither kept nor counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.recorded.recorder import Recorder, pad
from resolvent.attacks.square.ahead import Ahead, Live, Score

WORTH = 64  # fewest passes with windows of one size for which recording pays
_ROOM = 0.75  # least share of rows that must be active samples
_NAME = "square"
_MOVING = ("best", "loss", "logits", "bad", "broken", "queries")


class Replays:
    """The queries of one restart."""

    def __init__(self, recorder: Recorder, score: Score, ahead: Ahead) -> None:
        self.recorder, self.score, self.ahead = recorder, score, ahead

    def search(self, live: Live, queries: range, share: float, left: int) -> bool:
        """`live.search` to the end of these queries, of which `left` have windows of one size.

        False if it is not recorded; nothing has been done then.
        """
        recorder = self.recorder
        if not recorder.is_ready(live.best):
            return False
        query = self._find(recorder, live, share, left)
        if query is None:
            return False
        query.load(live, queries)
        passes = query.run(queries)
        seen, accepted, judged = query.store(live)
        recorder.victim.forwards += seen
        for _ in range(passes):
            self.ahead.learn(accepted, judged)  # the mean of all passes, for each of them
        return True

    def _find(self, recorder: Recorder, live: Live, share: float, left: int) -> Query | None:
        samples, own = len(live.at), recorder.steps.get(_NAME)
        wanted = self.ahead.depth(samples)
        if own is not None and own.score is self.score and own.serves(samples, wanted, share):
            found: Query = own
            return found
        depth = 1 << (wanted.bit_length() - 1)
        if left < WORTH * depth:
            return None
        recorder.steps.pop(_NAME, None)  # its memory is reused
        rows = pad(samples, self.ahead.rows // depth)
        query = recorder.make(lambda: Query(live, self.score, share, depth, rows))
        if query is not None:
            recorder.steps[_NAME] = query
        return query


class Query:
    """Up to `depth` windows for each of `rows` samples at fixed addresses, judged in order."""

    def __init__(self, live: Live, score: Score, share: float, depth: int, rows: int) -> None:
        self.share, self.depth, self.score = share, depth, score
        self.graph: Any = None
        device = live.best.device
        own = torch.arange(rows, device=device).clamp_max_(len(live.at) - 1)
        self.live = live.select(own)  # copies; rows without a sample repeat one
        self.block = self.live.deck.block
        self.standing = torch.zeros(rows, dtype=torch.bool, device=device)
        self.standing[: len(live.at)] = True
        self.first, self.stop = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        self.first.fill_(live.deck.first)
        self.stop.fill_(live.deck.first + live.deck.size)
        self.counts = torch.zeros(1, 3, dtype=torch.int64, device=device)  # windows seen, accepted, judged
        self.column = torch.arange(depth, device=device)
        self.row = torch.arange(rows, device=device)
        self.sample = self.row.repeat_interleave(depth)
        self.said = live.logits.new_zeros(rows, depth * live.logits.shape[1])  # output for rejected windows, unused
        self.step: Any = live.step
        self.inputs = [self.live.best]
        self.state = [*(getattr(self.live, name) for name in _MOVING), self.standing, self.counts, self.said]

    def serves(self, samples: int, depth: int, share: float) -> bool:
        """Whether it fits this number of samples and depth."""
        if share != self.share or not self.depth <= depth < 4 * self.depth:
            return False
        return _ROOM * len(self.row) <= samples <= len(self.row)

    def load(self, live: Live, queries: range) -> None:
        count = len(live.at)
        pairs = [(getattr(self.live, name), getattr(live, name)) for name in ("at", "y", *_MOVING)]
        pairs.append((self.block, live.deck.block))
        if live.step is not self.step:
            pairs += zip(_tensors(self.live.step), _tensors(live.step), strict=True)
            self.step = live.step
        for place, new in pairs:
            if place.data_ptr() != new.data_ptr():  # bounds shared by all samples
                place[: len(new)].copy_(new)
        self.standing.fill_(False)
        self.standing[:count] = True
        self.counts.zero_()
        self.first.fill_(live.deck.first)
        self.stop.fill_(queries.stop)

    def run(self, queries: range) -> int:
        """All queries of the active samples; returns the number of passes."""
        left, passes = len(queries), 0
        while left > 0:
            times = -(-left // self.depth)
            for _ in range(times):
                self.graph.replay()
            passes += times
            behind = (self.stop - self.live.queries) * self.standing
            left = 0 if self.depth == 1 else int(behind.amax())
        return passes

    def store(self, live: Live) -> list[int]:
        """Copy back the samples' state; returns the windows seen, accepted and judged."""
        for name in _MOVING:
            setattr(live, name, getattr(self.live, name)[: len(live.at)].clone())
        counts: list[int] = self.counts[0].tolist()
        return counts

    def work(self) -> None:
        """One pass: windows are drawn, evaluated and judged."""
        own, depth = self.live, self.depth
        query = own.queries[:, None] + self.column  # (r, depth)
        valid = (query < self.stop) & self.standing[:, None]
        place = (query - self.first).clamp_(0, self.block.shape[1] - 1)
        u = self.block.gather(1, place[:, :, None].expand(-1, -1, self.block.shape[2])).flatten(0, 1)
        trial = own.step.draw(own.best, self.share, u, None if depth == 1 else self.sample)
        logits = self.score.logits(trial, own.at, self.sample)
        self.said.copy_(logits.view(self.said.shape))
        y = own.y if depth == 1 else own.y[self.sample]
        self._judge(valid, trial, logits, self.score.loss(logits, y), y)

    def _judge(self, valid: Tensor, trial: Tensor, logits: Tensor, loss: Tensor, y: Tensor) -> None:
        """`Live._judge` for all rows."""
        own, worth = self.live, loss.view(valid.shape)
        fooled = (loss > -torch.inf) & (logits.argmax(1) != y)
        hit = ((worth > own.loss[:, None]) | fooled.view(valid.shape)) & valid
        first = torch.where(hit, self.column, self.depth).amin(1)  # (r,) how far ahead the accepted one is
        taken = first < self.depth
        counts = valid & (self.column <= first[:, None])
        if self.depth > 1:
            kept = self.row * self.depth + first.clamp_max(self.depth - 1)
            trial, logits, loss, fooled = trial[kept], logits[kept], loss[kept], fooled[kept]
        own.best.copy_(torch.where(taken[:, None], trial, own.best))
        own.logits.copy_(torch.where(taken[:, None], logits, own.logits))
        own.loss.copy_(torch.where(taken, loss.to(own.loss.dtype), own.loss))
        own.broken.logical_or_(taken & fooled)
        own.bad.logical_or_((counts & (worth == -torch.inf)).any(1))
        self.counts.add_(torch.stack([valid.sum(), taken.sum(), counts.sum()]))
        own.queries.add_(counts.sum(1))
        self.standing.logical_and_(~own.broken)


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors that a step's kernels read."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
