"""One run of APGD from given starts: momentum, best point, step size rule, dropping of broken samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.apgd.rule import StepRule, halving, sparsity
from resolvent.attacks.objective.gradient_probe import Probe, where_rows
from resolvent.attacks.rows import Rows, is_label
from resolvent.attacks.threat.region import Region


@dataclass(eq=False)
class Search:
    """The search state: current and previous iterate, and the point of highest loss with its gradient and outputs."""

    rows: Rows
    region: Region
    at: Tensor  # (b,) indices in the results
    x_adv: Tensor
    x_old: Tensor
    grad: Tensor
    loss: Tensor  # (b,) at x_adv
    x_best: Tensor
    grad_best: Tensor
    loss_best: Tensor  # (b,)
    logits_best: Tensor  # (b, classes)

    @classmethod
    def start(cls, rows: Rows, at: Tensor, x_adv: Tensor, loss: Tensor, grad: Tensor, logits: Tensor) -> Search:
        region = rows.threat.around(rows.x)
        best = (v.clone() for v in (x_adv, grad, loss, logits))  # copies: better points are written into them
        return cls(rows, region, at, x_adv, x_adv, grad, loss, *best)

    def advance(self, rule: StepRule, momentum: float) -> None:
        new = rule.move(self.rows, self.region, self.x_adv, self.x_old, self.grad, momentum)
        self.x_old, self.x_adv = self.x_adv, new

    def absorb(self, loss: Tensor, grad: Tensor, logits: Tensor) -> Tensor:
        """Take the values at x_adv; returns where the loss rose."""
        rose, better = loss > self.loss, (loss > self.loss_best).nonzero().squeeze(1)
        self.loss, self.grad = loss, grad
        if len(better):
            for best, new in zip(self._best, (self.x_adv, grad, loss, logits), strict=True):
                best.index_copy_(0, better, new.index_select(0, better))
        return rose

    @property
    def _best(self) -> tuple[Tensor, ...]:
        return self.x_best, self.grad_best, self.loss_best, self.logits_best

    def go_back(self, where: Tensor) -> None:
        self.x_adv = where_rows(where, self.x_best, self.x_adv)
        self.grad = where_rows(where, self.grad_best, self.grad)

    def select(self, keep: Tensor) -> None:
        self.rows, self.region = self.rows.select(keep), self.region.select(keep)
        for name in ("at", "x_adv", "x_old", "grad", "loss", "x_best", "grad_best", "loss_best", "logits_best"):
            setattr(self, name, getattr(self, name)[keep])


@dataclass(frozen=True)
class Run:
    """Options of one run: `warm` starts at an earlier stage's points; `judge` is off in a larger ball, whose points are
    not valid; `stop` drops broken samples.
    """

    steps: int
    rho: float
    momentum: float
    warm: bool = False
    judge: bool = True
    stop: bool = True


def run(settings: Run, probe: Probe, rows: Rows, start: Tensor, group: Tensor) -> Tensor:
    """Search from `start`; results go to probe.found. Returns the points of highest loss (b, ...).

    `group` (b,) is the sample of each row: when one row breaks it, all its rows are dropped.
    """
    at = torch.arange(len(rows), device=start.device)
    loss, grad, logits = probe.slope(rows, start, at)
    search = Search.start(rows, at, start, loss, grad, logits)
    rule = _rule(settings, rows, start, loss)
    best = start.clone()
    _thin(search, rule, _find_broken(settings, probe, search, logits), group)
    for i in range(settings.steps):
        if not search.at.numel():
            return best
        search.advance(rule, rule.momentum if i else 1.0)
        loss, grad, logits = probe.slope(search.rows, search.x_adv, search.at)
        rose = search.absorb(loss, grad, logits)
        broken = _find_broken(settings, probe, search, logits)
        back = rule.update(rose, search.loss_best, search.x_best, search.rows.x)
        if back is not None:
            search.go_back(back)
        _thin(search, rule, broken, group)
    best[search.at] = search.x_best
    if settings.judge:
        probe.found.offer(search.at, search.x_best, search.loss_best, search.logits_best)
    return best


def _rule(settings: Run, rows: Rows, start: Tensor, loss: Tensor) -> StepRule:
    if rows.threat.norm == "l1":
        return sparsity(rows, start, settings.steps, settings.warm)
    return halving(rows, loss, settings.steps, settings.rho, settings.momentum)


def _find_broken(settings: Run, probe: Probe, search: Search, logits: Tensor) -> Tensor | None:
    """The finished rows, if any: they are offered at once, the others with their best point at the end."""
    if not (settings.judge and settings.stop and is_label(search.rows.y)):
        return None
    wrong = (logits.argmax(1) != search.rows.y) & (search.loss > -torch.inf)
    if not bool(wrong.any()):
        return None
    probe.found.offer(search.at[wrong], search.x_adv[wrong], search.loss[wrong], logits[wrong])
    return wrong


def _thin(search: Search, rule: StepRule, broken: Tensor | None, group: Tensor) -> None:
    if broken is None:
        return
    mine = group[search.at]
    keep = ~torch.isin(mine, mine[broken])
    search.select(keep)
    rule.select(keep)
