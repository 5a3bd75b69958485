"""Square's queries several at a time: windows drawn ahead from the same best point and judged in order.

A window counts until one before it is accepted; those after it are drawn again from the new point. Random numbers
depend only on the sample and the query, so the result equals that of one query after the other, and so does the count:
a window after an accepted one is not a query, though the model saw it (`Victim.forwards` counts it).
Most windows are rejected, so nearly all of them count, and a few remaining samples still fill a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.attacks.square.deck import Deck
from resolvent.attacks.square.step import Step, find_compiled
from resolvent.attacks.strongest import Strongest
from resolvent.runtime.memory import plain


class Score(NamedTuple):
    """How points are evaluated and scored."""

    logits: Callable[[Tensor, Tensor, Tensor], Tensor]  # of points (m, n) of the samples at[which], which (m,)
    loss: Callable[[Tensor, Tensor], Tensor]  # of logits and labels; -inf where an output is not finite
    points: Callable[[Tensor, Tensor], Tensor]  # inputs of the model: of best (b, n) of the samples at (b,)


_MOST = 32  # most windows of a sample in one pass
_EAGER = 0.7  # highest acceptance per sample and pass: about a third of the pass is then wasted
_CHEAP = 12.0  # the same for all samples together: the cost of a large pass is proportional to its rows
_MEMORY = 0.9  # decay of the acceptance rate, per pass
_LEAST = 1e-4


class Ahead:
    """How far to look ahead: not while windows are often accepted, far when few are and few samples remain."""

    def __init__(self, rows: int, signed: bool = False) -> None:
        self.rows = rows  # most rows passed through the model at once
        self.signed = signed  # a loss below 0 means correctly classified
        self.rate = 1.0

    def depth(self, samples: int) -> int:
        wanted = min(_EAGER, _CHEAP / samples) / max(self.rate, _LEAST)
        return max(min(int(wanted), self.rows // samples, _MOST), 1)

    def learn(self, accepted: int, judged: int) -> None:
        self.rate = _MEMORY * self.rate + (1 - _MEMORY) * accepted / max(judged, 1)


@dataclass(eq=False)
class Live:
    """The samples still under attack, indices `at` in the batch, each with its best point so far."""

    at: Tensor
    y: Tensor
    step: Step
    deck: Deck
    best: Tensor  # (b, n)
    loss: Tensor  # (b,)
    logits: Tensor  # (b, classes)
    bad: Tensor  # (b,) bool: an output was not finite
    broken: Tensor  # (b,) bool
    queries: Tensor  # (b,) so far

    @classmethod
    def start(cls, at: Tensor, y: Tensor, step: Step, deck: Deck, score: Score) -> Live:
        """The first query: the starting point, accepted unless its outputs are not finite."""
        best = step.first(deck.draws)
        logits = score.logits(best, at, torch.arange(len(at), device=at.device))
        loss = score.loss(logits, y)
        sound = loss > -torch.inf
        broken = sound & (logits.argmax(1) != y)
        return cls(at, y, step, deck, best, loss.to(best.dtype), logits, ~sound, broken, torch.ones_like(at))

    def search(self, found: Strongest, score: Score, stop: int, share: float, ahead: Ahead) -> Live:
        """Every query before `stop`, with windows of one size and from one block of the deck; returns the rest."""
        live, code = self, find_compiled(self.best)
        while len(live.at):
            if code is not None and not live._compiled_pass(code, score, stop, share, ahead):
                break
            if code is None and not live._pass(score, stop, share, ahead):
                break
            live = live.leave(found, score, live.broken)
        return live

    def _pass(self, score: Score, stop: int, share: float, ahead: Ahead) -> bool:
        """One pass through the model; False once every sample is at `stop`."""
        rows = (self.queries < stop).nonzero().squeeze(1)
        if not len(rows):
            return False
        look = self._look(rows, stop, ahead.depth(len(rows)))
        whole = len(look.sample) == len(self.at) and look.depth == 1
        u = self.deck.deal(look.sample, look.query)
        trial = self.step.next(self.best, share, u, None if whole else look.sample)
        logits = score.logits(trial, self.at, look.sample)
        self._judge(look, ahead, trial, logits, score.loss(logits, self.y[look.sample]))
        return True

    def _compiled_pass(self, code: Any, score: Score, stop: int, share: float, ahead: Ahead) -> bool:
        """The same in compiled calls, for a model on the CPU."""
        queries = self.queries.numpy()
        left = int((queries < stop).sum())
        if not left:
            return False
        sample, query = (torch.from_numpy(part) for part in code.look_ahead(queries, stop, ahead.depth(left)))
        trial = self.step.next(self.best, share, self.deck.deal(sample, query), sample)
        logits = plain(score.logits(trial, self.at, sample))
        loss = self.loss[:0] if ahead.signed else score.loss(logits, self.y[sample])
        state = tuple(part.numpy() for part in (self.loss, self.logits, self.bad, self.broken, self.queries))
        seen = trial.numpy(), logits.numpy(), loss.numpy()
        ahead.learn(*code.judge_windows(seen, sample.numpy(), self.best.numpy(), state, self.y.numpy()))
        return True

    def leave(self, found: Strongest, score: Score, gone: Tensor) -> Live:
        """Report the samples of the mask `gone`; returns the remaining ones."""
        if not bool(gone.any()):
            return self
        self.select(gone)._report(found, score)
        return self.select(~gone)

    def select(self, index: Tensor) -> Live:
        rest = (t[index] for t in (self.best, self.loss, self.logits, self.bad, self.broken, self.queries))
        return Live(self.at[index], self.y[index], self.step.select(index), self.deck.select(index), *rest)

    def _look(self, rows: Tensor, stop: int, depth: int) -> _Look:
        if depth == 1:
            return _Look(rows, 1, rows, torch.zeros_like(rows), rows, self.queries[rows])
        query = self.queries[rows, None] + torch.arange(depth, device=rows.device)  # (r, depth)
        row, column = (query < stop).nonzero(as_tuple=True)
        return _Look(rows, depth, row, column, rows[row], query[row, column])

    def _judge(self, look: _Look, ahead: Ahead, trial: Tensor, logits: Tensor, loss: Tensor) -> None:
        """Keep the first better point of each sample."""
        least, most = (float(v) for v in torch.aminmax(loss))
        better, fooled = loss > self.loss[look.sample], None
        if most >= 0 or not ahead.signed:
            fooled = (loss > -torch.inf) & (logits.argmax(1) != self.y[look.sample])
            better = better | fooled
        counts, taken = look.first(better)
        judged = look.sample if counts is None else look.sample[counts]
        if len(taken):
            at = look.sample[taken]  # (accepted,) distinct
            self.best[at], self.logits[at] = trial[taken], logits[taken]
            self.loss[at] = loss[taken].to(self.loss.dtype)
            self.broken[at] = False if fooled is None else fooled[taken]
        if least == -torch.inf:
            unsound = loss == -torch.inf
            self.bad[look.sample[unsound if counts is None else counts & unsound]] = True
        self.queries.index_add_(0, judged, torch.ones_like(judged))
        ahead.learn(len(taken), len(judged))

    def _report(self, found: Strongest, score: Score) -> None:
        found.offer(self.at, score.points(self.best, self.at), self.loss, self.logits)
        found.queries[self.at] += self.queries
        found.non_finite[self.at] |= self.bad


@dataclass(frozen=True, eq=False)
class _Look:
    """One pass: up to `depth` windows for each of r samples, as m rows sample by sample."""

    rows: Tensor  # (r,) the samples
    depth: int
    row: Tensor  # (m,) in `rows`; unused with depth 1
    column: Tensor  # (m,) how far ahead
    sample: Tensor  # (m,)
    query: Tensor  # (m,)

    def first(self, better: Tensor) -> tuple[Tensor | None, Tensor]:
        """Which windows count (m,) bool, None for all, and which are accepted, as indices in m."""
        hits = better.nonzero().squeeze(1)
        if self.depth == 1 or not len(hits):
            return None, hits
        first = self.column.new_full((len(self.rows),), self.depth)  # (r,) how far ahead the accepted one is
        first = first.scatter_reduce(0, self.row[hits], self.column[hits], "amin")
        ahead = first[self.row]
        return self.column <= ahead, (self.column == ahead).nonzero().squeeze(1)
