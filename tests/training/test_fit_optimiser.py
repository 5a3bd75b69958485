"""Groups against those of the models, the schedule against torch's own, and batches that the seed fixes."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import small_task
from torch import nn

import resolvent as rv
from resolvent.models import ModelConfig, ResidualConfig, S4Config, build_model, optim_groups
from resolvent.training import FitSettings, parameter_groups
from resolvent.training.optimiser import make_optimiser, rate, set_rate
from resolvent.training.step.batches import Batches


def sequence_model() -> nn.Module:
    return build_model(ModelConfig(block=ResidualConfig(S4Config(4)), d_model=4, layers=2))


def test_groups_are_those_that_the_layers_ask_for() -> None:
    model = sequence_model()
    got, want = parameter_groups(model), optim_groups(model)
    assert len(got) > 1

    def contents(groups: list[dict[str, object]]) -> list[tuple[object, object, set[int]]]:
        found = [(g.get("lr"), g.get("weight_decay"), {id(p) for p in g["params"]}) for g in groups]  # type: ignore[attr-defined]
        return sorted(found, key=lambda item: min(item[2]))

    assert contents(got) == contents(want)


def test_a_model_that_offers_groups_is_asked_itself() -> None:
    class Own(nn.Linear):
        def optim_groups(self) -> list[dict[str, object]]:
            return [{"params": [self.bias], "lr": 0.5}]

    made = make_optimiser(nn.Sequential(Own(2, 2)), FitSettings(lr=0.1, weight_decay=0.3))
    assert [(g["lr"], g["weight_decay"], len(g["params"])) for g in made.param_groups] == [(0.1, 0.3, 1), (0.5, 0.3, 1)]


def test_one_group_as_the_paper_has_it_and_a_rate_for_the_dynamics() -> None:
    model = sequence_model()
    whole = make_optimiser(model, FitSettings(lr=0.1, groups=False))
    assert [len(g["params"]) for g in whole.param_groups] == [len(list(model.parameters()))]
    slow = make_optimiser(model, FitSettings(lr=0.1, ssm_lr=0.01))
    assert {(g["lr"], g["weight_decay"]) for g in slow.param_groups} == {(0.1, 2e-4), (0.01, 0.0)}


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train"):
        make_optimiser(layer, FitSettings())


def test_the_cosine_is_torchs() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
    for step in range(20):
        assert rate(step, 5, FitSettings(epochs=4)) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)
        optimiser.step()
        theirs.step()


def test_the_warm_up_rises_to_the_cosine() -> None:
    settings = FitSettings(epochs=4, warmup=1.0)
    got = [rate(step, 5, settings) for step in range(20)]
    assert got[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert got[19] == pytest.approx(0.5 * (1 + math.cos(math.pi * 14 / 15)))
    assert rate(9, 5, FitSettings(epochs=4, schedule="constant")) == 1.0


def test_every_group_keeps_its_share_of_the_rate() -> None:
    made = make_optimiser(sequence_model(), FitSettings(lr=0.1, ssm_lr=0.01))
    set_rate(made, 0.5)
    assert sorted(g["lr"] for g in made.param_groups) == pytest.approx([0.005, 0.05])


def test_an_epoch_passes_every_sample_once_and_follows_the_seed() -> None:
    task = small_task()
    batches = Batches(task.train, 16, seed=4)
    n = len(task.train)
    assert len(batches) == -(-n // 16)
    first, second = ([batches.at(e * len(batches) + i) for i in range(len(batches))] for e in (0, 1))
    ids = [torch.cat([b.draws.index for b in epoch]).tolist() for epoch in (first, second)]
    assert sorted(ids[0]) == sorted(ids[1]) == list(range(n))
    assert ids[0] != ids[1]
    assert torch.equal(torch.cat([b.x for b in first]), task.train.x[ids[0]])
    late = Batches(task.train, 16, seed=4).at(len(batches) + 1)  # from the middle, as after a kill
    assert torch.equal(late.x, second[1].x)
    other = Batches(task.train, 16, seed=5).at(0)
    assert not torch.equal(other.x, first[0].x)


def test_a_sample_draws_other_numbers_in_another_epoch() -> None:
    batches = Batches(small_task().train, 64, seed=0)
    a, b = batches.at(0), batches.at(1)
    one, two = (batch.draws.uniform(0, 0)[batch.draws.index.argsort()] for batch in (a, b))
    assert not torch.equal(one, two)


def test_optim_groups_work_through_the_public_names() -> None:
    assert len(parameter_groups(rv.S4D(4))) > 1
