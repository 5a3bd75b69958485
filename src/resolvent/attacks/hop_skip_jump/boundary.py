"""Points near the boundary between a class and the others, moved closer to x using predictions alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resolvent.attacks.objective.gradient_probe import where_rows
from resolvent.attacks.objective.objective import margin
from resolvent.attacks.rows import Rows
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.ball import direction, unit
from resolvent.attacks.victim import Victim

_HALVINGS = 25  # most halvings of a line search
_AT_ONCE = 32  # points per sample in one model pass
_SHRINKS = 20  # most shrinkings of a jump
_RADII = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # times |x|: starting noise if there are no bounds


class Boundary:
    """Current misclassified points v (b, n) of the samples `at`, with their distances (b,)."""

    def __init__(self, victim: Victim, rows: Rows, found: Strongest, at: Tensor) -> None:
        self.victim, self.rows, self.found, self.at = victim, rows, found, at
        x = rows.x
        self.v = torch.zeros_like(x.flatten(1))
        self.distance = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        self.dimension = int(rows.threat.count(x).amax())
        self.euclidean = rows.threat.norm == "l2"
        tight = 1.0 if self.euclidean else math.sqrt(self.dimension)
        self.theta = 1.0 / (self.dimension**1.5 * tight)  # accuracy of a line search (Chen et al., section III.C)

    @property
    def eps(self) -> Tensor:
        return self.rows.threat.radius(self.rows.x).flatten()

    def start(self, tries: int) -> None:
        """Random points until one is misclassified: uniform in the bounds, or increasing noise around x."""
        x, threat = self.rows.x, self.rows.threat
        left = torch.isinf(self.distance)
        for i in range(tries):
            if not bool(left.any()):
                break
            point = threat.masked(self._random(i) - x) + x
            v = self._enter(point)
            wrong = self._wrong(v) & left
            self.v = where_rows(wrong, v, self.v)
            self.distance = torch.where(wrong, self._size(v), self.distance)
            left &= ~wrong
        self._keep(~left)
        if len(self.at):
            self._search(self.v)

    def jump(self, iteration: int, queries: int) -> None:
        """Estimate the normal, jump, and search the line to x."""
        normal = self._normal(iteration, queries)
        step = self.distance / math.sqrt(iteration)
        moved, open_ = self.v, torch.ones_like(self.distance, dtype=torch.bool)
        for _ in range(_SHRINKS):
            there = self._kept(self.v + step[:, None] * normal)
            good = open_ & self._wrong(there, open_)
            moved = where_rows(good, there, moved)
            open_ &= ~good
            if not bool(open_.any()):
                break
            step = torch.where(open_, step / 2, step)
        self._search(moved)

    def leave(self, who: Tensor, beyond: bool = False) -> None:
        """Record the points of these samples: those within eps, or all of them with `beyond`."""
        if not bool(who.any()):
            return
        counts = who if beyond else who & (self.distance <= self.eps)
        if bool(counts.any()):
            at, point = self.at[counts], self._points(self.v)[counts]
            lengths = None if self.rows.lengths is None else self.rows.lengths[counts]
            logits = self.victim.forward(point, lengths)
            found, y = self.found, self.rows.y[counts]
            found.count(at, 1, backward=False)
            found.offer(at, point, margin(logits, y), logits, latest=True)
            found.wrong[at] &= self.distance[counts] <= self.eps[counts]
        self._keep(~who)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _search(self, far: Tensor) -> None:
        """Find the boundary between x and the misclassified `far`; keep it if nearer than the current point."""
        size = self._size(far)
        low, high = torch.zeros_like(size), torch.ones_like(size)
        for _ in range(_HALVINGS):
            if bool((high - low <= self.theta).all()):
                break
            middle = (low + high) / 2
            wrong = self._wrong(self._between(far, middle, size))
            high, low = torch.where(wrong, middle, high), torch.where(wrong, low, middle)
        v = self._between(far, high, size)
        length = self._size(v)
        nearer = length < self.distance
        fresh = torch.isinf(self.distance) | nearer
        self.v, self.distance = where_rows(fresh, v, self.v), torch.where(fresh, length, self.distance)

    def _between(self, far: Tensor, share: Tensor, size: Tensor) -> Tensor:
        """L2: on the line to x; Linf: clipped at this share of the distance."""
        if self.euclidean:
            return self._kept(share[:, None] * far)
        reach = (share * size)[:, None]
        return self._kept(far.clamp(-reach, reach))

    def _normal(self, iteration: int, queries: int) -> Tensor:
        """The direction of misclassification: the mean of random directions, signed by the predictions (eq. 16)."""
        n = self.v.shape[1]
        radius = self.distance * self.theta * (math.sqrt(self.dimension) if self.euclidean else self.dimension)
        radius = torch.maximum(radius, 1e-4 * self.distance)  # below that float32 rounding decides
        draws = self.rows.draws.fold("hop").fold(iteration)
        total, drift, weight = torch.zeros_like(self.v), torch.zeros_like(self.v), torch.zeros_like(self.distance)
        for first in range(0, queries, _AT_ONCE):
            many = range(first, min(first + _AT_ONCE, queries))
            noise = [unit(self._masked(draws.normal(0, q, (n,), self.v.dtype))) for q in many]
            there = [self._kept(self.v + radius[:, None] * u) for u in noise]
            for v, wrong in zip(there, self._answers(there), strict=True):
                u, sign = (v - self.v) / radius.clamp_min(1e-30)[:, None], wrong.to(v.dtype) * 2 - 1
                total, drift, weight = total + sign[:, None] * u, drift + u, weight + sign
        normal = total - (weight / queries)[:, None] * drift  # with less variance than the mean
        same = weight.abs() == queries  # all the same sign: use the mean
        normal = torch.where(same[:, None], total, normal)
        return direction("l2" if self.euclidean else "linf", normal)

    def _wrong(self, v: Tensor, asked: Tensor | None = None) -> Tensor:
        """The answers: one query for each sample that is asked."""
        who = torch.arange(len(self.at), device=v.device) if asked is None else asked.nonzero().squeeze(1)
        wrong = torch.zeros_like(self.at, dtype=torch.bool)
        wrong[who] = self._ask(self._points(v)[who], who)
        return wrong

    def _answers(self, there: list[Tensor]) -> Tensor:
        """The same for several points of each sample, which pass through the model together: (points, b)."""
        everyone = torch.arange(len(self.at), device=self.at.device)
        points = torch.cat([self._points(v) for v in there])
        return self._ask(points, everyone.repeat(len(there))).view(len(there), -1)

    def _ask(self, points: Tensor, who: Tensor) -> Tensor:
        """Which points of the samples `who` are misclassified; NaN and infinity are no answer."""
        lengths = None if self.rows.lengths is None else self.rows.lengths[who]
        logits = self.victim.forward(points, lengths)
        none = ~torch.isfinite(logits).all(1)
        self.found.queries.index_add_(0, self.at[who], torch.ones_like(who))
        self.found.non_finite[self.at[who[none]]] = True
        return ~none & (logits.argmax(1) != self.rows.y[who])

    def _random(self, i: int) -> Tensor:
        x, draws = self.rows.x, self.rows.draws.fold("start")
        low, high = self.rows.threat.box(x)
        if low is not None and bool(torch.isfinite(low).all() & torch.isfinite(high).all()):
            return low + (high - low) * draws.uniform(0, i, x.shape[1:], x.dtype)
        size = x.flatten(1).abs().amax(1).clamp_min(1.0).view(-1, *[1] * (x.dim() - 1))
        return x + _RADII[i % len(_RADII)] * size * draws.normal(0, i, x.shape[1:], x.dtype)

    def _enter(self, point: Tensor) -> Tensor:
        return self._kept(self._flat(point))

    def _flat(self, point: Tensor) -> Tensor:
        """v of points (b, ...): (b, n)."""
        moved, scale = point - self.rows.x, self.rows.threat.scale(point)
        return (moved if scale is None else moved / scale).flatten(1)

    def _points(self, v: Tensor) -> Tensor:
        delta, scale = v.view(self.rows.x.shape), self.rows.threat.scale(self.rows.x)
        return self.rows.x + (delta if scale is None else delta * scale)

    def _kept(self, v: Tensor) -> Tensor:
        """v with its points clipped to bounds and mask."""
        x, v = self.rows.x, self._masked(v)
        low, high = self.rows.threat.box(x)
        return v if low is None else self._flat(self._points(v).clamp(torch.minimum(low, x), torch.maximum(high, x)))

    def _masked(self, v: Tensor) -> Tensor:
        return self.rows.threat.masked(v.view(self.rows.x.shape)).flatten(1)

    def _size(self, v: Tensor) -> Tensor:
        return torch.linalg.vector_norm(v, 2, dim=1) if self.euclidean else v.abs().amax(1)

    def _keep(self, keep: Tensor) -> None:
        self.rows, self.at = self.rows.select(keep), self.at[keep]
        self.v, self.distance = self.v[keep], self.distance[keep]
