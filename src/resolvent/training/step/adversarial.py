"""Adversarial training: PGD-AT, TRADES, and the inner maximisation of both.

    pgd_at(threat)            E[ l(f(x'), y) ],                        x' = argmax l       Madry et al. 2018, eq. 2.1
    trades(threat, beta)      E[ l(f(x), y) + beta KL(f(x) || f(x')) ],  x' = argmax KL    Zhang et al. 2019, eq. 5

l is the cross-entropy, or for real targets the squared error; in TRADES, KL then becomes the squared deviation.

The attack runs on the model itself, in evaluation mode and frozen, or on its lowered form. If the model has one
(`model.lowered(x)`: a function of x and of tables made from the parameters), a training step is a fixed sequence of
operations with one set of tables: every attack step, the loss and its gradients. The attack uses the tables detached,
the training pass with their graph. A CPU runs the sequence directly, a GPU as a CUDA graph (`cuda_graph`). Other cases
(another norm than Linf, masks, lengths, a model without lowered form) run the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat, Victim, kl, squared_deviation
from resolvent.attacks.objective.slope import slope
from resolvent.attacks.pgd import ascend
from resolvent.attacks.rows import Rows
from resolvent.attacks.threat.region import Region
from resolvent.lowering.cpu.lanes import Path
from resolvent.ops.ascent import sign_step
from resolvent.runtime.fallback import triton_module
from resolvent.training.objective import Loss, standard
from resolvent.training.step.batch import Batch, criterion, wide
from resolvent.usage.numbers import check_count, check_not_negative, check_positive

Start = Callable[[Threat], Tensor]
Forward = Callable[[Tensor], Tensor]
Reach = tuple[Any, ...]  # an objective and its arguments after the output
PgdLoop = Callable[[Tensor, Path], "Tensor | None"]  # all steps from a start in one call, if supported


@dataclass(frozen=True)
class Inner:
    """The inner attack: its threat and number of steps; the step size defaults to 2.5 eps / steps.

    Examples:
        >>> rv.training.Inner(rv.Threat("linf", 0.1), steps=5).steps
        5
    """

    threat: Threat
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise TypeError(f"expected a Threat, got {type(self.threat).__name__}; write Threat('linf', eps, (0, 1)).")
        check_count("inner maximisation", 0, steps=self.steps)
        if self.step_size is not None:
            check_positive("inner maximisation", step_size=self.step_size)

    def ascend(
        self,
        model: nn.Module,
        batch: Batch,
        start: Start,
        objective: Callable[..., Tensor],
        reference: Callable[[Victim], Tensor],
    ) -> Tensor:
        """x' after `steps` steps up objective(f(x'), reference) from start(threat); with no steps, x itself."""
        if self.steps == 0:
            return batch.x
        threat = batch.fitted(self.threat)
        victim = Victim(model)
        with victim.attacked():  # evaluation mode, tables computed once, input gradients only
            rows = Rows(batch.x, batch.y, (reference(victim),), threat, batch.draws, batch.lengths)
            return ascend(victim, rows, start(threat), self.steps, self.size(threat, batch.x), objective)

    def size(self, threat: Threat, x: Tensor) -> Tensor:
        """The step size, shaped to multiply x: (b, 1, ...)."""
        radius = threat.radius(x)
        return radius * (2.5 / self.steps) if self.step_size is None else torch.full_like(radius, self.step_size)

    @cached_property
    def is_box(self) -> bool:
        """Whether the threat is just a box around x: every step then is the same operations."""
        return self.threat.norm == "linf" and self.threat.mask is None and not self.threat.shaped

    def ascent(self, threat: Threat, x: Tensor) -> Ascent:
        """The steps around x, for a threat already fitted to it."""
        size, scale = self.size(threat, x), threat.scale(x)
        return Ascent(threat.around(x), size if scale is None else size * scale, self.steps, scale is None)


@dataclass(frozen=True, eq=False)
class Ascent:
    """Steps of an Linf attack on a batch, with the threat's values read once."""

    region: Region
    size: Tensor  # step size (b, 1, ...), or shaped like x if each channel has its own eps
    steps: int
    even: bool  # whether all channels have the same size


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
        """x', the adversarial version of x."""
        start = lambda threat: threat.random_start(batch.x, batch.draws)  # noqa: E731
        return self.inner.ascend(model, batch, start, criterion, lambda _: batch.y)

    def at(self, model: nn.Module, batch: Batch, x_adv: Tensor) -> Loss:
        output = wide(batch.call(model)(x_adv))
        return Loss(batch.loss(output), output)

    def recorded(self, f: Passes, batch: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        """The same with the lowered form, as a fixed sequence of operations."""
        ascent = self.inner.ascent(threat, batch.x)
        start = threat.random_start(batch.x, batch.draws, region=ascent.region)
        output = f.learnt(run_ascent(f, ascent, start, (criterion, batch.y)))
        return batch.loss(output), output


@dataclass(frozen=True)
class TRADES:
    """Clean loss plus beta times the largest deviation found by the attack; see `trades`.

    Examples:
        >>> rv.trades(rv.Threat("linf", 0.1), beta=3.0).beta
        3.0
    """

    inner: Inner
    beta: float = 6.0
    noise: float = 1e-3

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if self.beta == 0:  # no attack needed: exactly the standard loss
            return standard(model, batch)
        quick = lowered_step(model, batch, self.inner, self.recorded)
        if quick is not None:
            return Loss(*quick)
        return self.at(model, batch, self.find(model, batch))

    def find(self, model: nn.Module, batch: Batch) -> Tensor:
        """x', where the outputs deviate most from those at x."""
        start = lambda threat: self._start(batch, threat.around(batch.x))  # noqa: E731
        clean = lambda victim: victim.forward(batch.x, batch.lengths)  # noqa: E731
        return self.inner.ascend(model, batch, start, _apart(batch), clean)

    def at(self, model: nn.Module, batch: Batch, x_adv: Tensor) -> Loss:
        return Loss(*self._loss(lambda x: wide(batch.call(model)(x)), batch, x_adv))

    def recorded(self, f: Passes, batch: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        """The same with the lowered form, as a fixed sequence of operations."""
        with torch.no_grad():
            clean = f.still(batch.x)
        ascent = self.inner.ascent(threat, batch.x)
        x_adv = run_ascent(f, ascent, self._start(batch, ascent.region), (_apart(batch), clean))
        return self._loss(f.learnt, batch, x_adv)

    def _loss(self, f: Forward, batch: Batch, x_adv: Tensor) -> tuple[Tensor, Tensor]:
        output = f(batch.x)
        robust = batch.mean(_apart(batch)(f(x_adv), output))
        return batch.loss(output) + self.beta * robust, output

    def _start(self, batch: Batch, region: Region) -> Tensor:
        x = batch.x
        return region.project(x + self.noise * batch.draws.normal(0, 0, x.shape[1:], x.dtype))


def _apart(batch: Batch) -> Callable[..., Tensor]:
    """How far apart outputs are: of classes, or real ones."""
    return squared_deviation if batch.y.is_floating_point() else kl


def pgd_at(threat: Threat, *, steps: int = 10, step_size: float | None = None) -> PGDAT:
    """The objective PGD-AT: the loss on samples attacked by `steps` steps of PGD from a uniform random start.

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

    The attack starts at x + `noise` N(0, 1). The KL is computed in the log domain, so its gradient is always finite.

    The clean outputs in the KL are not detached, as in the authors' code.

    Examples:
        >>> rv.trades(rv.Threat("linf", 0.1), beta=6.0, steps=3).inner.steps
        3
    """
    check_not_negative("trades", beta=beta, noise=noise)
    return TRADES(Inner(threat, steps, step_size), beta, noise)


# -- with the lowered form ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Passes:
    """The lowered model twice: `still` for attacks, `learnt` with parameter gradients. `pgd_loop` is a whole attack."""

    still: Forward
    learnt: Forward
    pgd_loop: PgdLoop | None = None


StepLoss = Callable[[Passes, Batch, Threat], tuple[Tensor, Tensor]]


def lowered_step(model: nn.Module, batch: Batch, inner: Inner, loss: StepLoss) -> tuple[Tensor, Tensor] | None:
    """(value, output) of one step; `value.backward()` gives the parameter gradients. None: use the general way.

    `loss` is compared by value: steps with equal losses share a recording.
    """
    lowered = lower(model, batch) if inner.steps and inner.is_box else None
    if lowered is None:
        return None
    if batch.x.is_cuda:
        from resolvent.training.step.cuda_graph import replay

        return replay(model, lowered, batch, inner.threat, loss)
    form, dtype = lowered
    tables = form.tables(batch.x.shape[1], dtype)
    still = tables.detached()
    loop = getattr(form, "run_loop", None)
    passes = Passes(partial(form, tables=still), partial(form, tables=tables), loop and partial(loop, tables=still))
    value, output = loss(passes, batch, batch.fitted(inner.threat))
    return value, output.detach()


def lower(model: nn.Module, batch: Batch) -> Any:
    """The model's lowered form and its dtype, if a step with it is a fixed sequence of operations."""
    # A recording would repeat the weights of its first batch.
    if batch.lengths is not None or (batch.weight is not None and batch.x.is_cuda):
        return None
    offered = getattr(model, "lowered", None)
    return offered(batch.x) if callable(offered) and torch.is_grad_enabled() else None


def run_ascent(f: Passes, ascent: Ascent, start: Tensor, reach: Reach) -> Tensor:
    """`rise` of `f.still`, in one call if model and objective allow."""
    target = None if f.pgd_loop is None or not ascent.even else _target(reach)
    if f.pgd_loop is not None and target is not None:
        region = ascent.region
        assert region.low is not None
        assert region.high is not None
        found = f.pgd_loop(start, Path(target, region.low, region.high, ascent.size, ascent.steps))
        if found is not None:
            return found
    return rise(f.still, ascent, start, reach)


def _target(reach: Reach) -> Tensor | None:
    """The t in the gradient softmax(z) - t of an objective with respect to logits z: labels, or probabilities."""
    objective, given = reach
    assert isinstance(given, Tensor)
    if objective is kl:
        return given.softmax(-1)
    labels = objective is criterion and given.dtype == torch.int64 and given.dim() == 1
    return given if labels else None


def rise(f: Forward, ascent: Ascent, start: Tensor, reach: Reach) -> Tensor:
    """`attacks.pgd.ascend` for Linf without synchronising: a sample whose gradient is not finite does not move."""
    (objective, *labels), x = reach, start
    for _ in range(ascent.steps):
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            output = f(at)
            losses = objective(output, *labels)
            grad = slope(losses.sum(), at)
            assert grad is not None
        x = step_signs(x, grad, (losses, output), ascent.region, ascent.size)
    return x


def step_signs(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    """x (b, ...) moved by `size` (b, 1, ...), or one that broadcasts to x; a sample whose gradient, loss or output is
    not finite does not move.

    answers  losses (b,) and outputs (b, ...)
    """
    alike = size[0].numel() == 1  # the same for all entries of a sample
    fits = x.is_cuda and alike and region.free is None and _is_float32(x, grad, *answers, region.low, region.high)
    quick = triton_module("ops.ascent.step_triton") if fits else None
    found = None if quick is None else quick.step(x, grad, answers, region, size)
    return plain_step(x, grad, answers, region, size) if found is None else found


def plain_step(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    seen = torch.cat([v.detach().reshape(len(x), -1) for v in (*answers, grad)], 1)
    good = ((seen - seen).sum(1) == 0).view(-1, *[1] * (x.dim() - 1))  # NaN where not finite
    return region.project(sign_step(x, grad, size, good))


def _is_float32(x: Tensor, *others: Tensor | None) -> bool:
    """Whether all are float32 and non-empty."""
    return x.numel() > 0 and all(t is not None and t.dtype == torch.float32 for t in (x, *others))
