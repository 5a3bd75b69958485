"""Adversarial weight perturbation against the formula written out, and that it leaves the model as it was."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from small_models import Small, small_task
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import Draws, Threat
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, build_model
from resolvent.training import PGDAT, TRADES, FitSettings, awp, fit, pgd_at, standard, trades
from resolvent.training.step.batch import Batch
from resolvent.training.step.parameter_aliases import put_parameters

THREAT = Threat("linf", 0.1, (0.0, 1.0))


def batch_of(dtype: torch.dtype = torch.float64) -> Batch:
    split = small_task().train.to("cpu", dtype)
    return Batch(split.x[:9], split.y[:9], None, Draws(0, torch.arange(9)))


def s4d() -> nn.Module:
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(d_state=4))
    return build_model(ModelConfig(ChannelsConfig(2), block, ClassifierConfig(3), d_model=6, layers=2)).double()


def written_out(model: nn.Module, batch: Batch, x_adv: Tensor, gamma: float) -> list[Tensor]:
    """The gradient at w + v, by a copy of the model that is moved by hand."""
    moved = copy.deepcopy(model)
    F.cross_entropy(moved(x_adv), batch.y).backward()
    with torch.no_grad():
        for p in moved.parameters():
            if p.dim() > 1:
                p += gamma * p.norm() * p.grad / p.grad.norm()
            p.grad = None
    F.cross_entropy(moved(x_adv), batch.y).backward()
    return [p.grad for p in moved.parameters()]


@pytest.mark.parametrize("make", [lambda: Small().double(), s4d], ids=["own", "s4d"])
def test_the_gradient_is_that_at_the_worst_weights(make: object) -> None:
    torch.manual_seed(0)
    model = make()  # type: ignore[operator]
    batch, objective = batch_of(), pgd_at(THREAT, steps=3)
    before = [p.detach().clone() for p in model.parameters()]
    x_adv = objective.find(model, batch)
    awp(objective, 0.05)(model, batch).value.backward()
    assert_close([p.grad for p in model.parameters()], written_out(model, batch, x_adv, 0.05))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_the_loss_is_higher_than_at_the_weights_themselves() -> None:
    model, batch = s4d(), batch_of()
    for objective in (pgd_at(THREAT, steps=3), trades(THREAT, 3.0, steps=3)):
        assert awp(objective, 0.05)(model, batch).value > objective(model, batch).value


def test_a_step_within_gamma_of_each_tensor() -> None:
    model, batch, objective = s4d(), batch_of(), awp(pgd_at(THREAT, steps=2), 0.01)
    found = objective.worst(model, batch, batch.x)
    assert {p.dim() > 1 for p in found} == {True}
    for p, v in found.items():
        assert float(v.norm()) in (pytest.approx(0.01 * float(p.detach().norm())), 0)


@pytest.mark.parametrize("objective", [pgd_at(THREAT, steps=2), trades(THREAT, steps=2)], ids=["pgd", "trades"])
def test_a_batch_counts_once_in_running_statistics(objective: PGDAT | TRADES) -> None:
    """The search for the worst weights is none of training's passes: one of PGD-AT, two of TRADES, as without it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    batch = batch_of()
    model(batch.x)
    start, alone = copy.deepcopy(model), copy.deepcopy(model)
    searched, moved = awp(objective), copy.deepcopy(model)
    searched(model, batch)
    worst = searched.worst(moved, batch, objective.find(moved, batch))
    with put_parameters(moved, {p: p + v for p, v in worst.items()}):
        objective.at(moved, batch, objective.find(start, batch))
    objective(alone, batch)
    assert int(model[2].num_batches_tracked) == int(alone[2].num_batches_tracked)
    assert_close(model[2].running_mean, moved[2].running_mean)


def test_fit_takes_it_with_its_threat() -> None:
    torch.manual_seed(0)
    history = fit(
        Small(), small_task(), awp(trades(THREAT, 3.0, steps=2)), FitSettings(epochs=2, batch_size=16, lr=0.02)
    )
    assert "validation_robust" in history.rows[-1]


def test_what_is_no_adversarial_objective_is_refused() -> None:
    with pytest.raises(TypeError, match=r"pgd_at\(threat\) or trades\(threat\), got standard"):
        awp(standard)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gamma"):
        awp(pgd_at(THREAT), -1.0)
