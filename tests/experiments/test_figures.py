"""Figures are drawn from the cells of tables, and sequential MNIST from pixels one by one."""

from __future__ import annotations

import json

import pytest

from resolvent.experiments import Cell
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.recipes.size import Size
from resolvent.models import S5Config

FIGURES = {1: ("qi2024-table1", "pgd-at"), 2: ("qi2024-table1", "trades"), 5: ("qi2024-table1", "standard")}


def cells(name: str, size: Size) -> list[Cell]:
    return [cell for cell in cells_of(name, size) if isinstance(cell, Cell)]


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("number", FIGURES)
def test_curves_come_from_the_cells_of_table_1(number: int, size: Size) -> None:
    table, kind = FIGURES[number]
    assert cells(f"qi2024-figure{number}", size) == [c for c in cells(table, size) if c.goal.kind == kind]


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize(("number", "table"), [(3, "qi2024-table1"), (4, "qi2024-table2")])
def test_bars_come_from_adversarially_trained_cells(number: int, table: str, size: Size) -> None:
    found = cells(f"qi2024-figure{number}", size)
    assert {cell.recipe for cell in found} == {table}
    assert {cell.goal.kind for cell in found} == {"pgd-at", "trades"}
    assert {cell.task.name for cell in found} == {"cifar10" if size == "full" else "digits"}
    assert all(cell.attribution for cell in found)
    structures = {cell.tags[0].partition("+")[0] for cell in found}
    assert structures == ({"s4", "dss", "s5", "mega", "mamba"} if number == 3 else {"s4", "dss"})


def test_what_the_figures_draw_is_measured() -> None:
    for cell in cells("qi2024-figure1", "full"):
        assert cell.budget.track_test
        assert cell.budget.track_seen == 1024


@pytest.mark.parametrize("size", ["full", "small"])
def test_sequential_mnist_is_read_pixel_by_pixel(size: Size) -> None:
    found = cells("smnist", size)
    for cell in found:
        assert (cell.task.name, cell.model.input.channels) == ("mnist", 1)  # type: ignore[union-attr]
        assert cell.goal.kind == "standard"
        assert cell.budget.choose == "clean"
        assert Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
    names = [cell.tags[0] for cell in found]
    assert names == (["s4d", "s5", "lru"] if size == "full" else ["s5"])
    if size == "small":
        assert isinstance(found[0].model.block.layer, S5Config)  # type: ignore[union-attr]
