"""Cells survive JSON; recipes give the cells that were published, by names that a user can mistype."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from resolvent.experiments import AttackPlan, Budget, Cell, Goal, RunError, TaskChoice, run_cell
from resolvent.experiments.recipe import cells_of, names
from resolvent.models import ModelConfig

SIZES = {
    "qi2024-table1": (30, 15),
    "qi2024-table2": (24, 12),
    "qi2024-versions": (4, 2),
    "qi2024-shift": (24, 12),
    "quickstart": (14, 10),
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


def test_the_additive_branch_is_the_only_difference_of_its_recipe_besides_the_gelu() -> None:
    for ours, theirs in zip(cells_of("qi2024-table2"), cells_of("qi2024-shift"), strict=True):
        assert theirs.tags == (*ours.tags, "shift")
        assert (ours.model.ads.shift, theirs.model.ads.shift) == (False, True)
        assert ours.model.ads.kind == theirs.model.ads.kind
        assert {theirs.model.block.activation, theirs.model.block.final_activation} == {"none"}
        assert (ours.task, ours.goal, ours.budget) == (theirs.task, theirs.goal, theirs.budget)


CHANNELS = {"cifar10": 3, "cifar10-grey": 1, "pathfinder": 1, "pathx": 1}


def test_models_of_the_long_range_arena_take_the_channels_of_their_data() -> None:
    images = [cell for cell in cells_of("lra") if cell.task.name in CHANNELS]
    assert len(images) == 3 * 17 - 1  # no Transformer on Path-X
    for cell in images:
        assert cell.model.input.channels == CHANNELS[cell.task.name], cell.address
    (coloured,) = [cell for cell in images if cell.task.name == "cifar10"]
    assert coloured.tags == ("lru", "image")  # the published number is of colour images
    assert all(cell.task.keywords() == {"normalise": True} for cell in images)


def test_variants_and_scaffolds_of_the_long_range_arena_are_cells_of_their_own() -> None:
    held = {cell.tags: cell.model for cell in cells_of("lra")}
    starts = {name: held[f"s4d-{name}", "text"].block.layer.init for name in ("legs", "inv", "lin")}
    assert starts == {name: name for name in starts}
    assert ("s4d", "text") not in held  # the best of three is no model
    assert {held[name, "image"].d_model for name in ("s4", "s6", "mamba", "griffin", "h3-lru")} == {512}
    inside = {"h3-s4": "S4Config", "h3-s5": "S5Config", "h3-lru": "LRUConfig", "mamba-rglru": "RGLRUConfig"}
    assert {name: type(held[name, "text"].block.layer).__name__ for name in inside} == inside
    assert not set(held) & {cell.tags for cell in cells_of("lra", "small")}  # a small run is no evidence of the table


@pytest.mark.parametrize("cell", cells_of("lra", "small", "digits"), ids=lambda cell: cell.tags[0])
def test_small_cells_of_the_long_range_arena_train(cell: Cell, tmp_path: Path) -> None:
    """Every model takes a few steps, and its settings come back from JSON."""
    assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
    short = replace(cell, task=TaskChoice("digits", samples=48), budget=Budget(1, 24, 4e-3, choose="clean"))
    record = run_cell(short, tmp_path, tell=lambda line: None)
    rows = record["training"]["rows"]
    assert (rows[-1]["step"], len(rows)) == (2, 1)
    assert 0 < rows[-1]["train_loss"] < 20


def test_majority_is_run_at_both_noises_of_the_paper() -> None:
    cells = [cell for cell in cells_of("honarpisheh2025-gap") if cell.tags[:2] == ("majority", "T=200")]
    assert {cell.tags[2:]: cell.task.keywords().get("noise", 0.25) for cell in cells} == {
        ("s_A=0",): 0.25,
        ("s_A=0", "noise=0.1"): 0.1,
    }
    assert cells_of("honarpisheh2025-stability", only="imdb,T=350")  # that of the paper's Table 3


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


def test_the_demo_compares_like_with_like() -> None:
    """Sizes within three of one another; the full AutoAttack on 128 samples; whatever a stage needs is there."""
    from resolvent.models import build_model, components_of, count_parameters

    cells = cells_of("quickstart", "small")
    models = {cell.address: build_model(cell.model) for cell in cells}  # type: ignore[union-attr]
    sizes = {count_parameters(model) for model in models.values()}
    assert max(sizes) <= 3 * min(sizes)
    names = {cell.tags[0] for cell in cells}
    assert {"linear", "cnn", "gru"} < names
    for cell in [*cells, *cells_of("quickstart", "full")]:
        assert isinstance(cell, Cell)
        assert cell.attacks[0].preset == "standard"
        assert (cell.attacks[0].samples or 128) >= 128
        if cell.attribution:
            assert components_of(build_model(cell.model))
