"""Perturbing a few time steps: which ones, and by how much.

Steps are chosen by their first-order gain, at x and at a point of the whole ball, followed by gradient ascent on
them alone. Then steps are swapped: the pair with the largest first-order gain, one step out and one in, and the ascent
again; a swap that does not raise the loss is undone and the next pair tried. With as many swaps as pairs the result is
a set of steps that no single swap improves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import Probe, where_rows
from resolvent.attacks.objective.objective import Objective, cross_entropy
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.threat.shape import align_time, find_heaviest
from resolvent.attacks.threat.threat import Threat

_FAR = 1e6  # times eps: so long a step ends at the edge of the region


@dataclass(frozen=True)
class SparseSteps(Opened):
    """`SparseSteps()(f, x, y, Threat("linf", 0.5, steps=3))`.

    ascent    steps of the gradient ascent on a set of time steps
    swaps     number of swaps tried
    restarts  the first starts at the steps of largest gain, others at random ones

    Examples:
        >>> f = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> x, y = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> found = rv.attacks.SparseSteps(swaps=1)(f, x, y, rv.Threat("linf", 0.5, steps=2))
        >>> bool(((found.x_adv != x).any(2).sum(1) <= 2).all())
        True
    """

    shapes: ClassVar[bool] = True
    aims: ClassVar[bool] = True
    least: ClassVar[dict[str, int]] = {"ascent": 1, "restarts": 1, "swaps": 0}
    ascent: int = 10
    swaps: int = 20
    restarts: int = 1
    objective: Objective = cross_entropy

    @property
    def name(self) -> str:
        label = getattr(self.objective, "__name__", type(self.objective).__name__)
        return "sparse-steps" if self.objective is cross_entropy else f"sparse-steps-{label}"

    def run(self, opening: Opening) -> AttackResult:
        rows = opening.rows
        if rows.threat.steps is None:
            raise ValueError('SparseSteps: the threat must say how many: Threat("linf", eps, steps=3).')
        probe = Probe.of(opening.victim, rows, self.objective)
        for restart in range(self.restarts):
            at = opening.everyone[~probe.found.wrong]
            if at.numel():
                _Search(self, probe, rows.select(at), at).run(restart)
        return probe.result(self.name)


def sparse_steps(
    f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any
) -> AttackResult:
    """`sparse_steps(f, x, y, threat, swaps=50)`: the fields of `SparseSteps` as keywords, `lengths` and `target`.

    Examples:
        >>> f = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> x, y = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> rv.attacks.sparse_steps(f, x, y, rv.Threat("linf", 0.5, steps=2), swaps=1).x_adv.shape
        torch.Size([4, 8, 1])
    """
    return SparseSteps.attack(f, x, y, threat, draws=draws, **settings)


class _Search:
    """One restart for the samples `at`; results go to the probe."""

    def __init__(self, settings: SparseSteps, probe: Probe, rows: Rows, at: Tensor) -> None:
        self.settings, self.probe, self.rows, self.at = settings, probe, rows, at
        self.budget = min(rows.threat.steps or 0, rows.x.shape[1])
        self.tried = torch.zeros(len(at), dtype=torch.int64, device=at.device)  # swaps since the last success

    def run(self, restart: int) -> None:
        kept = self._promising() if restart == 0 else self._drawn(restart)
        x_adv, loss, grad = self._ascend(kept, self.rows.x)
        for _ in range(self.settings.swaps if self.budget < self.rows.x.shape[1] else 0):
            going = ~self.probe.found.wrong[self.at]
            if not bool(going.any()):
                return
            if not bool(going.all()):
                x_adv, loss, grad, kept = self._select(going, x_adv, loss, grad, kept)
            swapped = self._swapped(kept, x_adv, grad)
            start = torch.where(align_time(swapped, x_adv.dim()), x_adv, self.rows.x)
            x_new, loss_new, grad_new = self._ascend(swapped, start)
            better = loss_new > loss
            x_adv, grad = where_rows(better, x_new, x_adv), where_rows(better, grad_new, grad)
            loss, kept = torch.where(better, loss_new, loss), torch.where(better[:, None], swapped, kept)
            self.tried = torch.where(better, 0, self.tried + 1)

    def _select(self, keep: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.rows, self.at, self.tried = self.rows.select(keep), self.at[keep], self.tried[keep]
        return tuple(t[keep] for t in tensors)

    def _ascend(self, kept: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ascent on the steps `kept` (b, l) only; the best point with its loss and gradient."""
        rows, probe = self._on(kept), self.probe
        region, size = rows.threat.around(rows.x), rows.threat.radius(rows.x)
        x_adv, best = region.project(start), None
        for i in range(self.settings.ascent + 1):
            loss, grad, logits = probe.slope(rows, x_adv, self.at)
            probe.found.offer(self.at, x_adv, loss, logits)
            if best is None:
                best = (x_adv, loss, grad)
            else:
                rose = loss > best[1]
                best = (where_rows(rose, x_adv, best[0]), torch.where(rose, loss, best[1]),
                        where_rows(rose, grad, best[2]))  # fmt: skip
            step = size * (2.0 * 0.7**i)  # the first crosses the ball
            x_adv = region.project(best[0] + step * rows.threat.steepest(best[2], at=best[0]))
        assert best is not None
        return best

    def _on(self, kept: Tensor) -> Rows:
        """The samples with a threat restricted to these steps."""
        rows = self.rows
        here = align_time(kept, rows.x.dim())
        mask = here if rows.threat.mask is None else here & rows.threat.mask
        return replace(rows, threat=replace(rows.threat.unshaped(), mask=mask))

    def _gain(self, grad: Tensor, x_adv: Tensor) -> Tensor:
        """The first-order gain of each step if it alone moved from x_adv to the edge of the region: (b, l)."""
        threat, x = self.rows.threat.unshaped(), self.rows.x
        if threat.norm == "linf":
            edge = threat.project(x_adv + _FAR * threat.radius(x) * threat.steepest(grad), x)
            return _per_step(grad * (edge - x_adv))
        grad, scale = threat.drop_held(grad, x_adv), threat.scale(grad)
        g = threat.masked(grad if scale is None else scale * grad)
        order = 2.0 if threat.norm == "l2" else torch.inf
        flat = g[..., None] if g.dim() == 2 else g
        return threat.radius(x).flatten()[:, None] * torch.linalg.vector_norm(flat, order, dim=2)

    def _promising(self) -> Tensor:
        """The best steps by the combined gain at x and after a short ascent in the whole ball: bool (b, l)."""
        rows, x = self.rows, self.rows.x
        whole = rows.threat.unshaped()
        region, x_adv, total = whole.around(x), x, torch.zeros_like(_per_step(x))
        for _ in range(3):
            _, grad, _ = self.probe.slope(rows, x_adv, self.at)
            gain = self._gain(grad, x)
            total = total + gain / gain.amax(1, keepdim=True).clamp_min(1e-30)
            x_adv = region.project(x_adv + 0.5 * whole.radius(x) * whole.steepest(grad, at=x_adv))
        return find_heaviest(total, self.budget)

    def _drawn(self, restart: int) -> Tensor:
        noise = self.rows.draws.fold("sparse steps").uniform(0, restart, self.rows.x.shape[1:2], torch.float64)
        free = self.rows.threat.masked(torch.ones_like(self.rows.x))
        return find_heaviest(noise * (_per_step(free) > 0), self.budget)

    def _swapped(self, kept: Tensor, x_adv: Tensor, grad: Tensor) -> Tensor:
        """One step out and one in: the next best pair that was not tried since the last success."""
        lost = _per_step(grad * (x_adv - self.rows.x))  # what leaving out a step costs to first order
        order = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        inside, outside = order[:, : self.budget], order[:, self.budget :]
        worth = self._gain(grad, x_adv).gather(1, outside)[:, None] - lost.gather(1, inside)[:, :, None]
        best = worth.flatten(1).argsort(dim=1, descending=True, stable=True)  # (b, steps inside * steps outside)
        pick = best.gather(1, (self.tried % best.shape[1])[:, None])
        out, into = pick // outside.shape[1], pick % outside.shape[1]
        return kept.scatter(1, inside.gather(1, out), False).scatter(1, outside.gather(1, into), True)


def _per_step(value: Tensor) -> Tensor:
    """Summed over channels: (b, l)."""
    return value if value.dim() == 2 else value.flatten(2).sum(2)
