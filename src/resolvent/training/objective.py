"""What training minimises: `objective(model, batch) -> Loss`. The loop does not know which one runs.

    standard                  E[ l(f(x), y) ]
    pgd_at(threat)            E[ l(f(x'), y) ],                        x' = argmax l       Madry et al. 2018, eq. 2.1
    trades(threat, beta)      E[ l(f(x), y) + beta KL(f(x) || f(x')) ],  x' = argmax KL    Zhang et al. 2019, eq. 5

l is the cross-entropy, or for real targets the squared error; in TRADES, KL then becomes the squared deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat, kl, squared_deviation
from resolvent.attacks.threat.region import Region
from resolvent.training.step.batch import Batch
from resolvent.training.step.criterion import criterion, wide
from resolvent.training.step.cuda_graph import recorded_pass
from resolvent.training.step.inner import Inner, Passes, lowered_step, run_ascent
from resolvent.usage.numbers import check_not_negative


@dataclass(frozen=True, eq=False)
class Loss:
    """The mean to minimise, and the outputs (b, ...) by which training accuracy is counted.

    Examples:
        >>> rv.training.Loss(torch.tensor(0.7), torch.zeros(2, 10)).output.shape
        torch.Size([2, 10])
    """

    value: Tensor
    output: Tensor


Objective = Callable[[nn.Module, Batch], Loss]
"""A function of model and batch that returns the loss: `standard`, `pgd_at(threat)`, `trades(threat)`, or yours."""


def standard(model: nn.Module, batch: Batch) -> Loss:
    """The mean loss on clean samples.

    Examples:
        >>> x, y = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> rv.training.standard(model, rv.training.Batch(x, y, None, rv.attacks.Draws.of(x))).output.shape
        torch.Size([4, 2])
    """
    quick = recorded_pass(model, batch, _clean)
    if quick is not None:
        return Loss(*quick)
    output = wide(batch.call(model)(batch.x))
    return Loss(batch.mean(criterion(output, batch.y)), output)


def _clean(f: Passes, batch: Batch) -> tuple[Tensor, Tensor]:
    """`standard` on a GPU, as one fixed sequence of kernels."""
    output = wide(f.learnt(batch.x))
    return batch.mean(criterion(output, batch.y)), output


@dataclass(frozen=True)
class PGDAT:
    """The mean loss on adversarial samples only; see `pgd_at`.

    Examples:
        >>> rv.pgd_at(rv.Threat("linf", 0.1), steps=5).inner.steps
        5
    """

    inner: Inner

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        quick = lowered_step(model, batch, self.inner, self.recorded)
        if quick is not None:
            return Loss(*quick)
        return self.at(model, batch, self.find(model, batch))

    def find(self, model: nn.Module, batch: Batch) -> Tensor:
        """x', what the attack makes of x."""
        start = lambda threat: threat.random_start(batch.x, batch.draws)  # noqa: E731
        return self.inner.ascend(model, batch, start, criterion, lambda _: batch.y)

    def at(self, model: nn.Module, batch: Batch, x_adv: Tensor) -> Loss:
        output = wide(batch.call(model)(x_adv))
        return Loss(batch.mean(criterion(output, batch.y)), output)

    def recorded(self, f: Passes, batch: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        """The same with the lowered form, as one fixed sequence of operations."""
        ascent = self.inner.ascent(threat, batch.x)
        start = threat.random_start(batch.x, batch.draws, region=ascent.region)
        x_adv = run_ascent(f, ascent, start, (criterion, batch.y))
        output = f.learnt(x_adv)
        return batch.mean(criterion(output, batch.y)), output


@dataclass(frozen=True)
class TRADES:
    """Clean loss plus beta times the deviation that the attack finds; see `trades`.

    Examples:
        >>> rv.trades(rv.Threat("linf", 0.1), beta=3.0).beta
        3.0
    """

    inner: Inner
    beta: float = 6.0
    noise: float = 1e-3

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if self.beta == 0:  # no term, no attack: the standard loss to the last bit
            return standard(model, batch)
        quick = lowered_step(model, batch, self.inner, self.recorded)
        if quick is not None:
            return Loss(*quick)
        return self.at(model, batch, self.find(model, batch))

    def find(self, model: nn.Module, batch: Batch) -> Tensor:
        """x', where the outputs are furthest from those at x."""
        start = lambda threat: self._start(batch, threat.around(batch.x))  # noqa: E731
        apart = squared_deviation if batch.y.is_floating_point() else kl
        return self.inner.ascend(model, batch, start, apart, lambda victim: victim.forward(batch.x, batch.lengths))

    def at(self, model: nn.Module, batch: Batch, x_adv: Tensor) -> Loss:
        apart = squared_deviation if batch.y.is_floating_point() else kl
        f = batch.call(model)
        output = wide(f(batch.x))
        robust = batch.mean(apart(wide(f(x_adv)), output))
        return Loss(batch.mean(criterion(output, batch.y)) + self.beta * robust, output)

    def recorded(self, f: Passes, batch: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        """The same with the lowered form, as one fixed sequence of operations."""
        apart = squared_deviation if batch.y.is_floating_point() else kl
        with torch.no_grad():
            clean = f.still(batch.x)
        ascent = self.inner.ascent(threat, batch.x)
        x_adv = run_ascent(f, ascent, self._start(batch, ascent.region), (apart, clean))
        output = f.learnt(batch.x)
        robust = batch.mean(apart(f.learnt(x_adv), output))
        return batch.mean(criterion(output, batch.y)) + self.beta * robust, output

    def _start(self, batch: Batch, region: Region) -> Tensor:
        x = batch.x
        return region.project(x + self.noise * batch.draws.normal(0, 0, x.shape[1:], x.dtype))


def pgd_at(threat: Threat, *, steps: int = 10, step_size: float | None = None) -> PGDAT:
    """The objective PGD-AT: the loss on samples attacked by `steps` steps of PGD from a uniform start in the ball.

    step_size  of the attack, in the units of the data; None: 2.5 eps / steps

    Examples:
        >>> rv.pgd_at(rv.Threat("linf", 0.1, bounds=(0, 1)), steps=5).inner.threat.eps
        0.1
    """
    return PGDAT(Inner(threat, steps, step_size))


def trades(
    threat: Threat, beta: float = 6.0, *, steps: int = 10, step_size: float | None = None, noise: float = 1e-3
) -> TRADES:
    """The objective TRADES: clean loss + beta KL(clean outputs, outputs under an attack of `steps` steps).

    The attack starts at x + `noise` N(0, 1). The KL stays in logarithms, so its gradient is finite at any logits.

    The clean outputs in the KL are not detached, as in the authors' code.

    Examples:
        >>> rv.trades(rv.Threat("linf", 0.1), beta=6.0, steps=3).inner.steps
        3
    """
    check_not_negative("trades", beta=beta, noise=noise)
    return TRADES(Inner(threat, steps, step_size), beta, noise)


def by_name(objective: Objective | str) -> Objective:
    """An objective that was named: one against an attacker has to know what he may do."""
    if not isinstance(objective, str):
        return objective
    name = objective.lower().replace("-", "_")
    if name == "standard":
        return standard
    if name in ("trades", "pgd_at"):
        raise ValueError(
            f"fit: {objective!r} needs to know what the attacker may do; write "
            f'rv.fit(model, task, rv.{name}(rv.Threat("linf", eps=0.1, bounds=task.bounds))) with your norm and eps.'
        )
    raise ValueError(
        f"fit: expected an objective, got {objective!r}; write "
        'rv.fit(model, task, "standard"), or rv.pgd_at(threat) or rv.trades(threat) with '
        'threat = rv.Threat("linf", eps=0.1, bounds=task.bounds).'
    )
