"""FAB, the fast adaptive boundary attack: a misclassified point as close to x as possible (Croce & Hein 2020).

FAB()           towards the nearest class: a backward pass for each class in every step
FAB(targets=9)  FAB-T: towards each of the 9 likeliest wrong classes; one backward pass per step and class
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.fab.linear import Spots, nearest, towards
from resolvent.attacks.fab.replays import find_step
from resolvent.attacks.fab.walk import Pace, Walk
from resolvent.attacks.objective.objective import margin, rank_wrong_classes
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.stretch import Stretch
from resolvent.attacks.threat.threat import Threat
from resolvent.usage.numbers import check_positive, check_share


@dataclass(frozen=True)
class FAB(Opened):
    """The fast adaptive boundary attack, which minimises the distance: `FAB(targets=9)(f, x, y, threat)`.

    targets    0, or how many wrong classes to walk towards, likeliest first
    restarts   after the first walk, which starts at x, others start at random at eps / 2 from it
    minimal    False: a sample is done once broken within eps; True: walk on for the nearest point
    at_once    after the first target alone, which breaks most samples, this many are tried side by side
    alpha_max, eta, beta   see walk.Pace; the published values
    upstream   True: only what the walk itself finds within eps counts, as published; False: at the end the nearest
               wrong point of a sample that stands is also tried where eps cuts it off, for one more query

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.FAB(steps=5)(f, x, y, threat).success.shape
        torch.Size([4])
    """

    least: ClassVar[dict[str, int]] = {"steps": 0, "targets": 0, "restarts": 1, "at_once": 1}
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
        super().__post_init__()
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
        hunt = Hunt(self, opening)
        with torch.no_grad():
            logits = hunt.look()
            for restart, ranks in self._rounds(logits.shape[1]):
                for at in hunt.chunks(max(len(ranks), 1)):
                    hunt.walk(at, hunt.targets(logits, at, ranks), restart)
            if not self.upstream:
                hunt.settle()
        return hunt.found.result(self.name)

    def _rounds(self, classes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(restart, ranks of the targets tried in parallel); without targets the ranks are empty."""
        count = min(self.targets, classes - 1)
        ranks = tuple(range(count))
        groups = [ranks[:1], *(ranks[i : i + self.at_once] for i in range(1, count, self.at_once))]
        for restart in range(self.restarts):
            for group in groups:
                yield restart, group


def fab(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """The nearest misclassified points to x (b, ...) with classes y (b,); keywords: the fields of `FAB`, and `lengths`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.fab(f, x, y, threat, steps=5).x_adv.shape
        torch.Size([4, 3])
    """
    return FAB.attack(f, x, y, threat, draws=draws, **settings)


@dataclass(frozen=True, eq=False)
class _Band:
    """The active samples; `y` and `lengths` are repeated per walker."""

    at: Tensor  # (s,) indices of the samples
    target: Tensor | None  # (s, k)
    y: Tensor  # (s * k,)
    lengths: Tensor | None  # (s * k,)
    stretch: Stretch | None  # scaling of points (s, k, n), if each channel has its own eps

    @classmethod
    def of(cls, rows: Rows, at: Tensor, target: Tensor | None) -> _Band:
        each = at if target is None else at.repeat_interleave(target.shape[1])
        stretch = rows.threat.stretch(rows.x)
        stretch = None if stretch is None else stretch.select(at).beside()
        return cls(at, target, rows.y[each], None if rows.lengths is None else rows.lengths[each], stretch)

    def points(self, v: Tensor) -> Tensor:
        """The model inputs of the walkers' positions (s, k, n)."""
        return v if self.stretch is None else self.stretch.leave(v)

    @property
    def width(self) -> int:
        return 1 if self.target is None else self.target.shape[1]

    def select(self, rows: Rows, index: Tensor) -> _Band:
        return _Band.of(rows, self.at[index], None if self.target is None else self.target[index])


class Hunt:
    """One call of the attack: the samples, the results, and the nearest misclassified points at any distance."""

    def __init__(self, settings: FAB, opening: Opening) -> None:
        self.settings = settings
        self.opening = opening
        self.victim = opening.victim
        self.rows = rows = opening.rows
        self.found = Strongest(rows)
        self.point = rows.x.clone()
        self.clean = rows.x  # outputs at x, once known
        self.distance = torch.full((len(rows),), torch.inf, dtype=rows.x.dtype, device=rows.x.device)

    def look(self) -> Tensor:
        """Outputs at x; misclassified samples have distance 0 and are not attacked."""
        logits, everyone = self.opening.look(self.found), self.opening.everyone
        self.clean = logits
        self.found.offer(everyone, self.rows.x, self._loss(logits, everyone), logits)
        self.distance[self.found.wrong] = 0.0
        return logits

    def chunks(self, width: int) -> Iterator[Tensor]:
        """The samples still to attack, as many at a time as fill one batch with their walkers."""
        near = self.distance <= 0 if self.settings.minimal else self.found.wrong
        left = (~near).nonzero().squeeze(1)
        size = max((self.victim.batch_size or len(self.rows) * width) // width, 1)
        return iter(left.chunk(-(-len(left) // size))) if len(left) else iter(())

    def targets(self, logits: Tensor, at: Tensor, ranks: tuple[int, ...]) -> Tensor | None:
        """Wrong classes (s, k), likeliest first; None if the attack targets the nearest."""
        if not ranks:
            return None
        return rank_wrong_classes(logits[at], self.rows.y[at])[:, list(ranks)]

    def walk(self, at: Tensor, target: Tensor | None, restart: int) -> None:
        """All steps of one restart for the samples `at`."""
        rows, band, paid = self.rows.select(at), _Band.of(self.rows, at, target), 0
        state = self._start(rows, band, self._begin(rows, target, restart))
        for i in range(self.settings.steps):
            if self._step(state, band, i) and not self.settings.minimal:
                self._enter(state, band, i + 1 - paid)
                left, paid = (~self.found.wrong[band.at]).nonzero().squeeze(1), i + 1
                if not len(left):
                    return
                band, state = band.select(self.rows, left), state.select(left)
        self._enter(state, band, self.settings.steps - paid)

    def _start(self, rows: Rows, band: _Band, begin: Tensor) -> Walk:
        """The walkers at `begin` (s, k, n); with an eps per channel they move in v, around 0."""
        point, distance, stretch = self.point[band.at], self.distance[band.at], band.stretch
        if stretch is None:
            return Walk.start(rows.x, begin, rows.threat, point, distance)
        whole = rows.threat.stretch(rows.x)
        assert whole is not None
        v = whole.enter(point)
        return Walk.start(torch.zeros_like(v), stretch.enter(begin), rows.threat.stretched(whole), v, distance)

    def settle(self) -> None:
        """For robust samples project the nearest misclassified point into the ball, and keep it if stronger than x."""
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

    def _enter(self, state: Walk, band: _Band, steps: int) -> None:
        """Record the results and cost of steps: two passes per walker, one with a gradient, or one per class."""
        at, gradients = band.at, self.clean.shape[1] if band.target is None else band.width
        best = band.points(state.best[:, None])
        self.point[at], self.distance[at] = best.view(-1, *self.rows.x.shape[1:]), state.distance
        self.found.non_finite[at] |= state.odd
        self.found.queries[at] += 2 * steps * band.width
        self.found.gradients[at] += steps * gradients

    def _step(self, state: Walk, band: _Band, i: int) -> bool:
        """Step number i, by its recording if there is one; returns whether samples were broken within eps."""
        spots, recorder, step = self._spots(state, band), self.victim.recorder, None
        if recorder is not None:
            step = find_step(recorder, self, state, spots, band.target, self.settings.steps - i)
        if step is None or band.target is None:
            self._leave(state, band, spots, fresh=i == 0)
            return self._arrive(state, band, *self._look(state, band))
        walker, logits, flat = step.run(state, spots, band.target)
        if i == 0:
            self.found.zero_gradient[band.at] |= flat
        return self._arrive(state, band, walker, logits)

    def _leave(self, state: Walk, band: _Band, spots: Spots, fresh: bool) -> None:
        """One step from the walkers' positions, by z_t - z_y (s, k) and its gradient (s, k, n)."""
        if band.target is None:
            gap, slope, _ = nearest(self.victim, spots, state.threat.norm)
        else:
            gap, slope, _ = towards(self.victim, spots, band.target.flatten())
        gap, slope = gap.view(state.at.shape[:2]).to(state.at.dtype), slope.reshape(state.at.shape)
        if fresh:
            self.found.zero_gradient[band.at] |= state.is_flat(slope)
        state.step(gap, slope, self.settings.pace)

    def _spots(self, state: Walk, band: _Band) -> Spots:
        """The walkers' positions, sample by sample."""
        shape, points = (-1, *self.rows.x.shape[1:]), band.points(state.at)
        scale = None if band.stretch is None else band.stretch.scale.expand(points.shape).reshape(shape)
        return Spots(points.reshape(shape), band.y, band.lengths, scale)

    def _look(self, state: Walk, band: _Band) -> tuple[Tensor, Tensor]:
        """After the step: the best walker (s,) of each sample, and outputs (s, k, classes)."""
        spots = self._spots(state, band)
        logits = self.victim.forward(spots.x, spots.lengths).view(*state.at.shape[:2], -1)
        return state.across(logits, spots.y.view(logits.shape[:2]), self.settings.pace), logits

    def _arrive(self, state: Walk, band: _Band, walker: Tensor, logits: Tensor) -> bool:
        """Record the results; returns whether samples were broken within eps."""
        if int(walker.max()) < 0:
            return False
        near = (walker >= 0).nonzero().squeeze(1)
        there, where = logits[near, walker[near]], band.at[near]
        points = band.points(state.best[:, None])[near].view(-1, *self.rows.x.shape[1:])
        loss = self._loss(there, where)
        held = self.rows.threat.select(where).holds(points, self.rows.x[where])  # rounding may leave the ball
        self.found.offer(where, points, torch.where(held, loss, -torch.inf), there, latest=True)
        return bool(held.any())

    def _loss(self, logits: Tensor, at: Tensor) -> Tensor:
        return torch.where(torch.isfinite(logits).all(1), margin(logits, self.rows.y[at]), -torch.inf)
