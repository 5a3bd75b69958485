"""Objectives against their formulas written out, and what an attack inside of training must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_models import Small, batch_of, gradients, small_task
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import FourierNoise, Site, Threat
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, build_model
from resolvent.training import Batch, FitSettings, Probe, fit, measure, pgd_at, standard, toned, trades

EPS = 0.1
THREAT = Threat("linf", EPS, (0.0, 1.0))


def model() -> Small:
    torch.manual_seed(1)
    return Small(dropout=0.0).double()


def walked(f: nn.Module, x: Tensor, start: Tensor, loss_of: object, steps: int, size: float) -> Tensor:
    """Sign steps clipped to ball and box, in as few words as possible."""
    x_adv = start
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        loss_of(f(x_adv)).backward(inputs=[x_adv])  # type: ignore[operator]
        x_adv = (x_adv + size * x_adv.grad.sign()).clamp(x - EPS, x + EPS).clamp(0, 1)  # type: ignore[union-attr]
    return x_adv.detach()


def test_standard_is_the_mean_cross_entropy() -> None:
    f, batch = model(), batch_of(small_task())
    want = -f(batch.x).log_softmax(-1)[torch.arange(6), batch.y].mean()
    got = standard(f, batch)
    assert_close(got.value, want)
    assert_close(gradients(f, got.value), gradients(f, want), gradient=True)


def test_pgd_at_is_the_loss_at_the_point_of_a_plain_walk() -> None:
    f, batch = model(), batch_of(small_task())
    start = THREAT.random_start(batch.x, batch.draws)
    x_adv = walked(f, batch.x, start, lambda z: F.cross_entropy(z, batch.y, reduction="sum"), 5, 0.03)
    assert not torch.equal(x_adv, batch.x)
    want = F.cross_entropy(f(x_adv), batch.y)
    got = pgd_at(THREAT, steps=5, step_size=0.03)(f, batch)
    assert_close(got.value, want)
    assert_close(gradients(f, got.value), gradients(f, want), gradient=True)
    assert got.value > standard(f, batch).value


def test_trades_is_its_formula_with_both_sides_differentiated() -> None:
    f, batch, beta = model(), batch_of(small_task()), 2.5
    p = f(batch.x).softmax(-1).detach()
    noise = batch.draws.normal(0, 0, batch.x.shape[1:], torch.float64)
    start = (batch.x + 1e-3 * noise).clamp(0, 1)
    x_adv = walked(f, batch.x, start, lambda z: (p * (p.log() - z.log_softmax(-1))).sum(), 10, EPS / 4)
    clean, q = f(batch.x).softmax(-1), f(x_adv).softmax(-1)
    want = F.nll_loss(clean.log(), batch.y) + beta / 6 * (clean * (clean.log() - q.log())).sum()
    got = trades(THREAT, beta)(f, batch)
    assert_close(got.value, want)
    assert_close(gradients(f, got.value), gradients(f, want), gradient=True)


class Beside(nn.Module):
    """One logit as two, with a zero beside it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.inner(x), (1, 0))


def one_logit() -> nn.Module:
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(4), mixer="linear")
    config = ModelConfig(ChannelsConfig(2), block, ClassifierConfig(1), d_model=4, layers=1, prenorm=False)
    return build_model(config).double()


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_one_logit_trains_as_two_with_a_zero_beside_it(make: object) -> None:
    f, batch = one_logit(), batch_of(small_task())
    batch = replace(batch, y=batch.y % 2)
    objective = make(THREAT, steps=3)  # type: ignore[operator]
    got, want = objective(f, batch).value, objective(Beside(f), batch).value
    assert got.item() > standard(f, batch).value.item() + 1e-6
    assert_close(got, want)
    assert_close(gradients(f, got), gradients(f, want), gradient=True)


def test_one_logit_is_measured_as_two_with_a_zero_beside_it() -> None:
    f, split = one_logit(), small_task().validation
    two = replace(split, y=split.y % 2, x=split.x.double())
    want = measure(Beside(f), two, Probe(THREAT))
    assert measure(f, two, Probe(THREAT)) == pytest.approx(want, abs=1e-10)


def test_trades_with_beta_zero_is_the_cross_entropy_to_the_last_bit() -> None:
    f, batch = model(), batch_of(small_task())
    plain, robust = standard(f, batch), trades(THREAT, beta=0.0)(f, batch)
    assert torch.equal(plain.value, robust.value)
    assert all(torch.equal(a, b) for a, b in zip(gradients(f, plain.value), gradients(f, robust.value), strict=True))


class Steep(nn.Module):
    """Logits of +-1e4 that change sign with x."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.scale * (x.mean((1, 2)) - 0.5).sign()[:, None] * torch.tensor([1.0, -1.0, 1.0])
        return z + self.scale * 0.1 * x.mean((1, 2))[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trades_is_finite_at_logits_of_ten_thousand(dtype: torch.dtype) -> None:
    f, batch = Steep().to(dtype), batch_of(small_task(), dtype=dtype)
    loss = trades(Threat("linf", 0.5, (0.0, 1.0)), beta=6.0)(f, batch).value
    (grad,) = gradients(f, loss)
    assert loss > 1e3  # the attack did flip signs, so probabilities underflowed
    assert torch.isfinite(loss)
    assert torch.isfinite(grad)


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_no_steps_are_the_identity(make: object) -> None:
    f, batch = model(), batch_of(small_task())
    assert torch.equal(make(THREAT, steps=0)(f, batch).value, standard(f, batch).value)  # type: ignore[operator]


@pytest.mark.parametrize("objective", [pgd_at(THREAT, steps=3), trades(THREAT, steps=3)], ids=["pgd_at", "trades"])
def test_the_attack_runs_still_and_leaves_nothing_behind(objective: object) -> None:
    torch.manual_seed(1)
    f, batch = Small(dropout=0.5).double().train(), batch_of(small_task())
    f.enter.eval()  # a part that the user keeps in evaluation mode stays so
    f.leave.weight.requires_grad_(False)
    objective(f, batch)  # type: ignore[operator]
    assert f.training
    assert not f.enter.training
    assert not f.leave.weight.requires_grad
    assert f.enter.weight.requires_grad
    assert all(p.grad is None for p in f.parameters())
    assert f.freezes == 1
    assert not any(f.seen[:3])  # the walk in evaluation mode
    assert f.seen[-1]  # the training pass itself in training mode


def test_a_failing_model_is_given_back_as_it_was() -> None:
    class Fails(Small):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            if x.requires_grad:
                raise RuntimeError("broken")
            return super().forward(x, lengths)

    f = Fails().double().train()
    with pytest.raises(RuntimeError, match="broken"):
        pgd_at(THREAT)(f, batch_of(small_task()))
    assert f.training
    assert all(p.requires_grad for p in f.parameters())


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_padding_has_no_say(make: object) -> None:
    """Other values beyond the lengths change neither loss nor gradient."""
    f, batch = model(), batch_of(small_task(lengths=True))
    assert batch.lengths is not None
    beyond = (torch.arange(5) >= batch.lengths[:, None])[..., None]
    assert beyond.any()
    other = Batch(torch.where(beyond, 0.77, batch.x), batch.y, batch.lengths, batch.draws)
    a, b = (make(THREAT, steps=4)(f, item).value for item in (batch, other))  # type: ignore[operator]
    assert_close(a, b)
    assert_close(gradients(f, a), gradients(f, b), gradient=True)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_training_on_any_norm_raises_the_loss(norm: str) -> None:
    f, batch = model(), batch_of(small_task())
    threat = Threat(norm, {"linf": 0.1, "l2": 0.3, "l1": 0.8}[norm], (0.0, 1.0))  # type: ignore[arg-type]
    assert pgd_at(threat)(f, batch).value > standard(f, batch).value


def test_real_targets_take_the_squared_error() -> None:
    f, batch = model(), batch_of(small_task(regression=True))
    assert_close(standard(f, batch).value, ((f(batch.x) - batch.y) ** 2).sum(1).mean())
    assert pgd_at(THREAT)(f, batch).value > standard(f, batch).value
    assert trades(THREAT, 1.0)(f, batch).value > standard(f, batch).value


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: trades(THREAT, "6"), TypeError, "beta must be a number, got '6'"),
        (lambda: trades(THREAT, -1.0), ValueError, "beta must be finite and not negative"),
        (lambda: trades(THREAT, steps="10"), TypeError, "steps must be a whole number, got '10'"),
        (lambda: pgd_at(THREAT, step_size=0.0), ValueError, "step_size must be positive"),
        (lambda: pgd_at(0.1), TypeError, "expected a Threat, got float"),
    ],
)
def test_wrong_numbers_are_told(make: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]


def test_an_attack_inside_of_another_objective_measures_the_checkpoints() -> None:
    """Under `toned` the threat was not seen, and the best checkpoint was chosen by clean accuracy."""
    noise = FourierNoise(0.1, 1.0)
    objective = toned(noise, lambda f: [Site(f.drop)], pgd_at(THREAT, steps=1))
    history = fit(Small(), small_task(), objective, FitSettings(epochs=1, batch_size=16))
    assert "validation_robust" in history.rows[0]
