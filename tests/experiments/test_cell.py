"""Cells survive JSON; recipes give the cells that were published, by names that a user can mistype."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files

import pytest

from resolvent.experiments import AttackPlan, Cell, Goal, RunError
from resolvent.experiments.recipe import cells_of, names
from resolvent.models import ModelConfig

SIZES = {
    "qi2024-table1": (30, 15),
    "qi2024-table2": (24, 12),
    "qi2024-versions": (4, 2),
    "quickstart": (10, 10),
    "digits-robustness": (63, 21),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", ["full", "small"])
def test_cells_survive_json_and_have_places_of_their_own(name: str, size: str) -> None:
    cells = cells_of(name, size)  # type: ignore[arg-type]
    assert len(cells) == SIZES[name][size == "small"]
    assert len({cell.place for cell in cells}) == len(cells)
    for cell in cells:
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell


@pytest.mark.parametrize("recipe", ["qi2024-table1", "qi2024-table2", "qi2024-versions"])
def test_every_published_row_has_its_cell(recipe: str) -> None:
    text = files("resolvent.report").joinpath("targets.toml").read_text(encoding="utf-8")
    rows = {tuple(row["tags"]) for row in tomllib.loads(text)["target"] if row["recipe"] == recipe}
    assert rows == {cell.tags for cell in cells_of(recipe)}


def test_published_settings() -> None:
    (cell,) = cells_of("qi2024-table1", only="s4,cifar10,trades")
    goal, budget, (attack,) = cell.goal, cell.budget, cell.attacks
    assert (goal.eps, goal.step_size, goal.steps, goal.beta) == (0.031, 0.007, 10, 6.0)
    assert (budget.epochs, budget.batch_size, budget.lr, budget.weight_decay, budget.groups) == (
        180,
        256,
        1e-3,
        2e-4,
        False,
    )
    assert (attack.preset, attack.samples, attack.eps) == ("standard", 2000, 0.031)
    assert cell.seed == 5


def test_versions_differ_where_text_and_code_do() -> None:
    for cell in cells_of("qi2024-versions"):
        layout, activation = cell.tags[-2:]
        assert cell.task.keywords()["layout"] == layout
        assert {cell.model.block.activation, cell.model.block.final_activation} == {activation}
    (named,) = cells_of("qi2024-table1", only="s4,cifar10,pgd-at")
    ways = [(cell.model, cell.task) for cell in cells_of("qi2024-versions")]
    assert ways.count((named.model, named.task)) == 1  # the table's own cell is one of them


def test_only_and_seeds() -> None:
    cells = cells_of("quickstart", "small", "s4,trades", (0, 1, 2))
    assert [(cell.address, cell.seed) for cell in cells] == [("s4,digits,trades", seed) for seed in (0, 1, 2)]


def test_wrong_names_offer_the_nearest() -> None:
    with pytest.raises(RunError, match="did you mean 'quickstart'"):
        cells_of("quikstart")
    with pytest.raises(RunError, match="did you mean 'trades'"):
        cells_of("quickstart", only="s4,tradez")
    with pytest.raises(RunError, match="all at once"):
        cells_of("quickstart", only="s4,mamba")
    assert set(SIZES) <= set(names())


@pytest.mark.parametrize("tag", ["..", "a/b", "", "a b", "\\x", "/etc"])
def test_a_tag_cannot_leave_the_folder(tag: str) -> None:
    with pytest.raises(ValueError, match="goes into a path"):
        Cell("recipe", (tag,), ModelConfig())


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="needs eps"):
        Goal("trades")
    with pytest.raises(ValueError, match="did you mean 'standard'"):
        Goal("standart")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="preset"):
        AttackPlan("slow")


def test_seeds_that_are_asked_for_replace_those_of_the_recipe() -> None:
    found = cells_of("digits-robustness", "full", "s4,trades", seeds=(1, 7))
    assert [cell.place for cell in found] == [f"digits-robustness/s4-digits-trades/seed-{seed}" for seed in (1, 7)]
