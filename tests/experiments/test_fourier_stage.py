"""The Fourier stage of a run, where its tones enter, and the recipe that compares S4D with S4-PTD under them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import assert_close, small_classifier
from resolvent.attacks import Draws
from resolvent.experiments import Budget, Cell, FourierPlan, Goal, TaskChoice, run_cell
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.recipes.ptd import noise_model
from resolvent.experiments.stages.fourier import own_worst
from resolvent.experiments.stages.sites import sites_of, step_of
from resolvent.layers import LRU, S5
from resolvent.models import ChannelsConfig, ClassifierConfig, S4DConfig, build_model, load_model
from resolvent.models.presets import robustness
from resolvent.training import Batch


def quiet(line: str) -> None:
    return


@pytest.fixture(scope="module")
def cell() -> Cell:
    model = noise_model(S4DConfig(4, dt_min=0.01), ChannelsConfig(1), ClassifierConfig(10, "last"), d_model=4, layers=2)
    plan = FourierPlan((0.1, 10.0), (5.0,), samples=20, batch_size=7)
    return Cell("test", ("s4d",), model, TaskChoice("digits", samples=40), Goal(),
                Budget(epochs=1, batch_size=20, choose="clean", ssm_lr=0.0), fourier=plan)  # fmt: skip


def test_a_run_tells_its_scores_under_noise(cell: Cell, tmp_path: Path) -> None:
    torch.manual_seed(cell.seed)
    before = build_model(cell.model).state_dict()
    record = run_cell(cell, tmp_path / "a", tell=quiet)
    held = record["fourier"]
    assert (held["samples"], held["where"], held["regression"]) == (20, "layers", False)
    assert held["sites"] == ["tower.body.blocks.0.layer", "tower.body.blocks.1.layer"]
    assert [p["amplitude"] for p in held["points"]] == [0.1, 10.0] * 2
    assert held["points"][2]["frequency"] == held["own"]["frequency"]
    other = replace(cell, fourier=replace(cell.fourier or FourierPlan(), batch_size=20))
    assert run_cell(other, tmp_path / "b", tell=quiet)["fourier"] == held
    after = load_model(tmp_path / "a" / "checkpoint" / "last").state_dict()
    frozen = [n for n in before if n.rpartition(".")[2] in ("log_dt", "log_decay", "frequency", "B")]
    assert len(frozen) == 8
    assert all(torch.equal(before[n], after[n]) for n in frozen), "dt, A and B were to stay"
    assert not torch.equal(before["tower.body.blocks.0.layer.C"], after["tower.body.blocks.0.layer.C"])


def test_sites_have_the_layers_own_time_steps() -> None:
    model = build_model(robustness("dss", "mnist"))
    sites = sites_of(model)
    assert len(sites) == 2
    assert torch.as_tensor(sites[0].dt).shape == (128,)
    s5 = S5(4, 8)
    assert step_of(s5) == pytest.approx(math.exp(float(s5.log_step.detach().mean())))
    assert step_of(LRU(4, 8)) == 1.0
    assert sites_of(build_model(robustness("mega", "mnist")))[0].dt == 1.0


def test_the_own_worst_frequency_is_in_the_time_of_its_place() -> None:
    torch.manual_seed(0)
    head = ClassifierConfig(2)
    layer = S4DConfig(16, dt_min=0.01, dt_max=0.01)
    model = build_model(noise_model(layer, ChannelsConfig(1), head, d_model=3, layers=1))
    inside, outside = own_worst(model), own_worst(model, "input")
    assert inside is not None
    assert outside is not None
    assert inside.frequency == pytest.approx(80.966, rel=1e-2)  # the spike of 16 states
    assert outside.frequency == pytest.approx(inside.frequency * 0.01, rel=1e-6)
    assert own_worst(build_model(robustness("mamba", "mnist"))) is None


def test_a_bidirectional_model_has_a_worst_frequency_too() -> None:
    layer = S4DConfig(4, bidirectional=True, dt_min=0.1, dt_max=0.1)
    model = build_model(small_classifier(layer, channels=1, classes=2, d_model=3))
    found = own_worst(model)
    assert found is not None
    assert found.name.startswith("tower.body.blocks.0.layer.")
    assert found.frequency == pytest.approx((found.per_step or 0) / 0.1)


def test_training_hears_the_tone_that_the_test_plays() -> None:
    """The loss is that of a model whose layers were given the waves by hand, with other ones in another epoch."""
    torch.manual_seed(0)
    layer = S4DConfig(4, dt_min=0.01)
    model = build_model(noise_model(layer, ChannelsConfig(1), ClassifierConfig(10, "last"), d_model=3, layers=1))
    x, y = torch.rand(5, 20, 1), torch.arange(5)
    batch = Batch(x, y, None, Draws(7, torch.arange(5)))
    goal = Goal(tone=(0.4, 5.0))
    loss = goal.objective((0.0, 1.0))(model, batch)
    body = model.tower.body.blocks[0].layer
    times = torch.arange(20.0).double()[:, None] * body.log_dt.detach().exp().double()
    size = batch.draws.fold("tone").fold(0).uniform(0, 0, (1, 3), torch.float64)
    wave = 0.4 * size * torch.cos(5.0 * times)  # one phase for all
    forward = body.forward
    body.forward = lambda u, *rest: forward(u + wave.float(), *rest)  # type: ignore[method-assign]
    want = torch.nn.functional.cross_entropy(model(x), y)
    assert_close(loss.value, want.detach())
    del body.forward
    other = goal.objective(None)(model, replace(batch, draws=Draws(8, torch.arange(5))))
    assert not torch.equal(other.value, loss.value)
    assert_close(Goal(tone=(0.0, 5.0)).objective(None)(model, batch).value, Goal().objective(None)(model, batch).value)
    assert not body._forward_pre_hooks
    for wrong in ({"tone": (1.0,)}, {"tone": (1.0, 2.0), "kind": "pgd-at", "eps": 0.1}):
        with pytest.raises(ValueError, match="tone is"):
            Goal(**wrong)


def scores(record: dict[str, Any]) -> dict[float, float]:
    held = record["fourier"]["points"][:4]
    return {p["amplitude"]: p["score"] for p in held}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "sinusoids"])
def test_a_tone_at_the_spike_hurts_s4d_and_not_ptd(task: str, tmp_path: Path) -> None:
    """Half a minute each: training on two cores, no outside data."""
    cells = [cell for name in ("s4d", "s4-ptd") for cell in cells_of("ptd-fourier", "small", f"{name},{task}")]
    s4d, ptd = (run_cell(cell, tmp_path / str(i), tell=quiet) for i, cell in enumerate(cells))  # type: ignore[arg-type]
    lost = [record["fourier"]["clean"] - scores(record)[0.3] for record in (s4d, ptd)]
    if task == "digits":
        assert min(record["fourier"]["clean"] for record in (s4d, ptd)) > 0.85
        assert lost[0] > 0.5  # most of what S4D knew
        assert abs(lost[1]) < 0.03
    else:
        assert lost[0] > 10 * abs(lost[1])  # of the squared error


def test_ablation_and_noisy_training_have_their_cells() -> None:
    sizes = cells_of("ptd-ablation", "small", "digits")
    assert [cell.model.block.layer.perturbation for cell in sizes] == [0.01, 0.03, 0.1, 0.3, 0.5]  # type: ignore[union-attr]
    assert sizes[0].address == "s4-ptd,digits,size=0.01"
    noisy = cells_of("ptd-noisy", "full")
    assert [cell.goal.tone for cell in noisy] == [(0.3, 325.426)] * 2  # type: ignore[union-attr]
    s5 = cells_of("ptd-fourier", "full", "s5-ptd")[0]
    assert (s5.model.block.layer.d_state, s5.model.block.layer.blocks) == (128, 4)  # type: ignore[union-attr]


def test_the_full_recipe_is_the_published_experiment() -> None:
    cells = cells_of("ptd-fourier", "full")
    assert [cell.address for cell in cells] == ["s4d,cifar10", "s4-ptd,cifar10", "s5,cifar10", "s5-ptd,cifar10"]
    cell = cells[0]
    assert isinstance(cell, Cell)
    assert (cell.model.d_model, cell.model.layers, cell.model.prenorm, cell.model.dropout) == (128, 4, False, 0.1)
    block: Any = cell.model.block
    assert (block.skip, block.layer.skip, block.layer.d_state) == (False, False, 32)
    assert (cell.budget.ssm_lr, cell.budget.epochs, cell.budget.lr, cell.budget.weight_decay) == (0.0, 100, 0.01, 0.05)
    assert cell.fourier is not None
    assert 0.1 in cell.fourier.amplitudes
