"""FAB, the fast adaptive boundary attack: a misclassified point as near to x as can be found (Croce & Hein 2020).

FAB()           towards whichever class is nearest: a backward pass for each class in every step
FAB(targets=9)  FAB-T: towards each of the 9 likeliest wrong classes; one backward pass per step and class
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.fab_linear import Spots, nearest, towards
from resolvent.attacks.fab_walk import Pace, Walk
from resolvent.attacks.objective import margin
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.setting import check_count, check_positive, check_share
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat import Threat


@dataclass(frozen=True)
class FAB(Opened):
    """`FAB(targets=9)(f, x, y, threat, draws=draws)`.

    targets    0, or how many wrong classes to walk towards, likeliest first
    restarts   after the first walk, which starts at x, others start at random at eps / 2 from it
    minimal    False: a sample is done once broken within eps; True: walk on for the nearest point
    at_once    after the first target alone, which breaks most samples, this many are tried side by side
    alpha_max, eta, beta   see fab_walk.Pace; the published values
    upstream   True: only what the walk itself finds within eps counts, as published; False: at the end the nearest
               wrong point of a sample that stands is also tried where eps cuts it off, for one more query
    """

    steps: int = 100
    restarts: int = 1
    targets: int = 0
    minimal: bool = False
    at_once: int = 8
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    upstream: bool = False

    def __post_init__(self) -> None:
        check_count("FAB", 0, steps=self.steps, targets=self.targets)
        check_count("FAB", 1, restarts=self.restarts, at_once=self.at_once)
        check_share("FAB", alpha_max=self.alpha_max, beta=self.beta)
        check_positive("FAB", eta=self.eta)

    @property
    def name(self) -> str:
        return "fab-t" if self.targets else "fab"

    @property
    def pace(self) -> Pace:
        return Pace(self.alpha_max, self.eta, self.beta)

    def run(self, opening: Opening) -> AttackResult:
        opening.require_classes("FAB")
        hunt = _Hunt(self, opening)
        with torch.no_grad():
            logits = hunt.look()
            for restart, ranks in self._rounds(logits.shape[1]):
                for at in hunt.chunks(max(len(ranks), 1)):
                    hunt.walk(at, hunt.targets(logits, at, ranks), restart)
            if not self.upstream:
                hunt.settle()
        return hunt.found.result(self.name)

    def _rounds(self, classes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(restart, ranks of the targets tried side by side); without targets the ranks are empty."""
        count = min(self.targets, classes - 1)
        ranks = tuple(range(count))
        groups = [ranks[:1], *(ranks[i : i + self.at_once] for i in range(1, count, self.at_once))]
        for restart in range(self.restarts):
            for group in groups:
                yield restart, group


def fab(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """`fab(f, x, y, threat, targets=9)`: the fields of `FAB` as keywords."""
    return FAB(**settings)(f, x, y, threat, draws=draws)


class _Hunt:
    """One call of the attack: the samples, what was found, and the nearest wrong points, near enough or not."""

    def __init__(self, settings: FAB, opening: Opening) -> None:
        self.settings = settings
        self.opening = opening
        self.victim = opening.victim
        self.rows = rows = opening.rows
        self.found = Strongest(rows)
        self.point = rows.x.clone()
        self.distance = torch.full((len(rows),), torch.inf, dtype=rows.x.dtype, device=rows.x.device)

    def look(self) -> Tensor:
        """Outputs at x; what is wrong already has distance 0 and is left alone."""
        logits, everyone = self.opening.look(self.found), self.opening.everyone
        self.found.offer(everyone, self.rows.x, self._loss(logits, everyone), logits)
        self.distance[self.found.wrong] = 0.0
        return logits

    def chunks(self, width: int) -> Iterator[Tensor]:
        """The samples still to attack, so many at a time that their walkers fill one batch."""
        near = self.distance <= 0 if self.settings.minimal else self.found.wrong
        left = (~near).nonzero().squeeze(1)
        size = max((self.victim.batch_size or len(self.rows) * width) // width, 1)
        return iter(left.chunk(-(-len(left) // size))) if len(left) else iter(())

    def targets(self, logits: Tensor, at: Tensor, ranks: tuple[int, ...]) -> Tensor | None:
        """Wrong classes (s, k), likeliest first; None where the attack takes the nearest."""
        if not ranks:
            return None
        y = self.rows.y[at]
        own = torch.nn.functional.one_hot(y, logits.shape[1]).bool()
        least = torch.finfo(logits.dtype).min
        scores = logits[at].nan_to_num(nan=least, neginf=least).masked_fill(own, -torch.inf)
        return scores.sort(dim=1, descending=True, stable=True).indices[:, list(ranks)]

    def walk(self, at: Tensor, target: Tensor | None, restart: int) -> None:
        """All steps of one restart for the samples `at`."""
        rows, pace, fresh = self.rows.select(at), self.settings.pace, True
        state = Walk.start(rows.x, self._begin(rows, target, restart), rows.threat)
        for _ in range(self.settings.steps):
            gap, slope = self._linearise(state, at, target, fresh)
            state.step(gap, slope, pace)
            fresh = False
            done = self._arrive(state, at)
            if not self.settings.minimal and bool(done.any()):
                left = (~done).nonzero().squeeze(1)
                at, state = at[left], state.select(left)
                target = None if target is None else target[left]
                if not len(left):
                    return

    def settle(self) -> None:
        """Samples that stand: pull the nearest wrong point into the ball, and keep it where it is stronger than x."""
        at = (~self.found.wrong & torch.isfinite(self.distance)).nonzero().squeeze(1)
        if len(at):
            rows = self.rows.select(at)
            pulled = rows.threat.project(self.point[at], rows.x)
            logits = self.victim.forward(pulled, rows.lengths)
            self.found.count(at, 1, backward=False)
            self.found.offer(at, pulled, self._loss(logits, at), logits)

    def _begin(self, rows: Rows, target: Tensor | None, restart: int) -> Tensor:
        width = 1 if target is None else target.shape[1]
        if restart == 0:
            return rows.x.flatten(1)[:, None].expand(-1, width, -1).clone()
        draws, half = rows.draws.fold("fab").fold(restart), rows.threat.scaled(0.5)
        keys = [draws if target is None else draws.fold(target[:, j]) for j in range(width)]
        return torch.stack([half.random_start(rows.x, key, surface=True).flatten(1) for key in keys], 1)

    def _linearise(self, state: Walk, at: Tensor, target: Tensor | None, fresh: bool) -> tuple[Tensor, Tensor]:
        """z_t - z_y (s, k) and its gradient (s, k, n), cleaned and counted."""
        s, k, n = state.at.shape
        spots = self._spots(state, at)
        if target is None:
            gap, slope, logits = nearest(self.victim, spots, state.threat.norm)
        else:
            gap, slope, logits = towards(self.victim, spots, target.flatten())
        slope, gap = slope.reshape(s, k, n), gap.view(s, k).to(state.at.dtype)
        sound = torch.isfinite(slope.abs().amax(2)) & torch.isfinite(gap)
        if fresh:
            acts = slope if state.free is None else slope * state.free
            self.found.zero_gradient[at] |= (acts == 0).all(2).all(1)
        self.found.queries[at] += k
        self.found.gradients[at] += k if target is not None else logits.shape[1]
        if bool(sound.all()):
            return gap, slope
        self.found.non_finite[at] |= ~sound.all(1)
        return torch.where(sound, gap, 0.0), torch.where(sound[:, :, None], slope, 0.0)

    def _spots(self, state: Walk, at: Tensor) -> Spots:
        """Where the walkers stand, sample by sample."""
        k, rows = state.at.shape[1], self.rows
        lengths = None if rows.lengths is None else rows.lengths[at].repeat_interleave(k)
        return Spots(state.at.view(-1, *rows.x.shape[1:]), rows.y[at].repeat_interleave(k), lengths)

    def _arrive(self, state: Walk, at: Tensor) -> Tensor:
        """Look where the step ended; which samples (s,) are broken within eps."""
        s, k, _ = state.at.shape
        spots = self._spots(state, at)
        logits = self.victim.forward(spots.x, spots.lengths)
        self.found.queries[at] += k
        sound = torch.isfinite(logits).all(1)
        self.found.non_finite[at] |= ~sound.view(s, k).all(1)
        wrong = sound & (logits.argmax(1) != spots.y)
        walker = state.across(wrong.view(s, k), self.settings.pace)
        self._note(state, at, logits.view(s, k, -1), walker)
        return self.found.wrong[at]

    def _note(self, state: Walk, at: Tensor, logits: Tensor, walker: Tensor) -> None:
        """Enter the points that came nearer than any before."""
        new = ((walker >= 0) & (state.distance < self.distance[at])).nonzero().squeeze(1)
        if not len(new):
            return
        rows, points = at[new], state.best[new]
        self.point[rows] = points.view(-1, *self.rows.x.shape[1:])
        self.distance[rows] = state.distance[new]
        near = new[state.distance[new] <= state.threat.radius(state.x)[new, 0]]
        if len(near):
            there, where = logits[near, walker[near]], at[near]
            self.found.offer(where, self.point[where], self._loss(there, where), there, latest=True)

    def _loss(self, logits: Tensor, at: Tensor) -> Tensor:
        return torch.where(torch.isfinite(logits).all(1), margin(logits, self.rows.y[at]), -torch.inf)
