"""The recipes of the generalisation study at CI size: s_A under training, failed seeds, bounds beside gaps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from resolvent.analysis import generalisation_bound, selective_norms
from resolvent.experiments import run_cell
from resolvent.experiments.cell import Cell
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.stages.generalised import selective_tensors
from resolvent.experiments.studies import error_growth, scaling
from resolvent.experiments.training_run import finite
from resolvent.models import build_model, load_model, presets
from resolvent.models.parts import last_weight

RECIPES = ("honarpisheh2025-stability", "honarpisheh2025-abscissa", "honarpisheh2025-gap")


def first(recipe: str, only: str = "") -> Cell:
    cell = cells_of(recipe, "small", only)[0]
    assert isinstance(cell, Cell)
    return cell


def test_experiment_1_drives_the_abscissa_to_zero(tmp_path: Path) -> None:
    """From s_A = 0.1 at T = 50: the loss falls by orders, and s_A ends within a fifth of where it began."""
    record = run_cell(first("honarpisheh2025-stability", "T=50").seeded(1), tmp_path, tell=lambda line: None)
    rows = record["training"]["rows"]
    assert rows[-1]["train_loss"] < 1e-3 * rows[0]["train_loss"]
    assert rows[-1]["train_score"] > 0.9
    assert abs(rows[-1]["s_A"]) < 0.02
    held = record["generalisation"]
    assert held["s_A"] == pytest.approx(rows[-1]["s_A"])
    check_bound(held, tmp_path)


def check_bound(held: dict[str, object], folder: Path) -> None:
    """The stage's numbers against a second reading of the checkpoint."""
    model = load_model(folder / "checkpoint" / "last")
    t = selective_tensors(model)
    norms = selective_norms(t.W_B, t.W_C, t.A, t.p, t.q, last_weight(model.head), t.u, T=50)
    assert held["bound"] == generalisation_bound(norms, 1000).value
    gap = held["gap"]
    assert gap["accuracy"] == pytest.approx(gap["train_clean"] - gap["test_clean"])


def test_a_length_that_training_does_not_survive_is_counted(tmp_path: Path) -> None:
    cell = first("honarpisheh2025-stability", "T=300")
    record = run_cell(cell, tmp_path, tell=lambda line: None)
    assert "not finite at step 1" in record["failed"]
    assert "generalisation" not in record
    json.loads((tmp_path / "record.json").read_text())


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_the_studys(recipe: str) -> None:
    cells = cells_of(recipe, "full")
    for cell in cells[:: len(cells) // 6]:
        assert isinstance(cell, Cell)
        budget = cell.budget
        assert (budget.optimiser, budget.schedule, budget.lr, budget.clip) == ("adam", "plateau", 1e-2, 5.0)
        assert cell.goal.spread
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
    assert {cell.tags[0] for cell in cells} == {"majority", "imdb", "listops"}


def test_sizes_of_the_recipes() -> None:
    sweep = {cell.tags[2] for cell in cells_of("honarpisheh2025-abscissa", "full")}
    assert len(sweep) == 11
    assert {"s_A=-0.1", "s_A=0", "s_A=0.1"} <= sweep
    gap = cells_of("honarpisheh2025-gap", "full", "imdb")
    assert len(gap) == 20 * 5
    assert {cell.seed for cell in gap} == set(range(5))


def test_other_models_have_no_such_bound() -> None:
    with pytest.raises(ValueError, match="expected one ScalarS6 layer behind an embedding"):
        selective_tensors(build_model(presets.l2ru_classifier(d_model=2, hidden=4, memory=4)))


def test_infinite_losses_become_none() -> None:
    held = {"a": [float("inf"), 1.0, "x"], "b": {"c": float("nan")}}
    assert finite(held) == {"a": [None, 1.0, "x"], "b": {"c": None}}


def test_scaling_study() -> None:
    found = scaling.table_one((10, 100))
    assert len(found["table"]["rows"]) == 9
    flat = {c["name"]: c["y"][-1] for c in found["charts"][0]["series"]}
    assert flat["selective SSM, s_A < 0"] == 0
    assert flat["linear attention"] == pytest.approx(1.0)
    rows = scaling.over_length((10, 1000))["table"]["rows"]
    rise = {name: b - a for (name, _, a, *_), (_, _, b, *_) in zip(rows[::2], rows[1::2], strict=True)}
    assert rise["s_A = -0.1"] < 1.5 < rise["s_A = 0"] < 4.1 < rise["s_A = 0.1"]
    assert rise["linear attention"] == pytest.approx(2.0)
    late = scaling.over_length((1000, 4000))["table"]["rows"]
    assert late[1][2] - late[0][2] == pytest.approx(0.0, abs=1e-9)  # s_A < 0: no longer sequence costs more
    assert late[3][2] - late[2][2] > 1.1  # s_A = 0: T^2 in the end


def test_error_growth_study() -> None:
    found = error_growth.over_length((4, 12), d=2, n=4)
    for _, _, lower, exact, attack, upper, *_ in found["table"]["rows"]:
        assert lower <= exact <= attack * (1 + 1e-9)
        assert attack <= upper * (1 + 1e-9)


def test_attack_of_the_growth_study_against_all_corners() -> None:
    """Of six steps all 64 corners can be tried: a convex function is largest at one of them."""
    torch.manual_seed(0)
    system = error_growth.systems(6, 1, 4)["S4D-LegS"](6)
    corners = 0.1 * (2.0 * torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6) - 1).double()
    best = error_growth.energy(system, corners[:, None, :, None]).max()
    assert error_growth.attack_system(system, 6, 0.1, starts=64) == pytest.approx(float(best.detach()))
