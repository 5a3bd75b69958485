"""The study of deep SSMs under adversarial training (Qi et al. 2024): Tables 1 and 2, and Figures 1 to 5 from them.

A figure's recipe names the cells of a table, not cells of its own: what one has run, the other finds done.

Full size is what was published: 180 epochs on sequential CIFAR-10, 100 on MNIST, AutoAttack on the first 2,000 test
images. The checkpoint that the authors report, best by PGD-10 on the test split, is kept as best_by_test; ours, chosen
by validation, stands beside it as best. The small size is the same comparison on the embedded digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from resolvent.blocks.ads import AdSKind
from resolvent.data.augment import Layout
from resolvent.experiments.cell import AttackPlan, Cell, TaskChoice
from resolvent.experiments.objective_settings import Goal, Kind
from resolvent.experiments.recipes.budgets import budget_of
from resolvent.experiments.recipes.digits import digits_cell
from resolvent.experiments.recipes.size import Size
from resolvent.experiments.study import Study
from resolvent.models.config import ResidualConfig
from resolvent.models.presets import robustness, robustness_training
from resolvent.models.presets.robustness import Dataset, Structure, Version

# Table 4: eps, step and beta of each dataset
THREATS: dict[Dataset, tuple[float, float, float]] = {"cifar10": (0.031, 0.007, 6.0), "mnist": (0.3, 0.04, 1.0)}


class Reading(NamedTuple):
    """Where text and released code differ: how CIFAR's pixels become steps, and whether S4's and DSS's blocks bend."""

    layout: Layout
    activation: Version


READING = Reading("pixels", "gelu")  # the text's; the released code reads planes and applies no GELU
SEED = 5  # the released code's
SEEN = 1024  # training samples that are attacked after every epoch, where the authors took all


def qi2024_table1(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Table 1: five structures, three ways of training, two datasets; clean, PGD-10, AutoAttack."""
    kinds: Sequence[Kind] = get_args(Kind)
    if size == "small":
        return [digits_cell("qi2024-table1", s, kind) for s in get_args(Structure) for kind in kinds]
    return [
        make_published("qi2024-table1", structure, dataset, kind)
        for dataset in get_args(Dataset)
        for structure in get_args(Structure)
        for kind in kinds
    ]


def qi2024_table2(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Table 2: S4 and DSS with adaptive scaling (ReLU, Sigmoid, Tanh) under PGD-AT and TRADES."""
    kinds: tuple[Kind, ...] = ("pgd-at", "trades")
    structures: tuple[Structure, ...] = ("s4", "dss")
    scalings: Sequence[AdSKind] = get_args(AdSKind)
    if size == "small":
        return [digits_cell("qi2024-table2", f"{s}+{a}", k) for s in structures for k in kinds for a in scalings]
    return [
        make_published("qi2024-table2", structure, dataset, kind, ads)
        for dataset in get_args(Dataset)
        for structure in structures
        for kind in kinds
        for ads in scalings
    ]


def qi2024_shift(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Table 2 as the released code runs it: adaptive scaling with its additive branch, no GELU."""
    return [_add_shift(cell, size) for cell in qi2024_table2(size)]


def _add_shift(cell: Cell, size: Size) -> Cell:
    assert cell.model.ads is not None
    model = replace(cell.model, ads=replace(cell.model.ads, shift=True))
    if size == "full":
        assert isinstance(model.block, ResidualConfig)
        model = replace(model, block=replace(model.block, activation="none", final_activation="none"))
    return replace(cell, recipe="qi2024-shift", tags=(*cell.tags, "shift"), model=model)


def qi2024_figure1(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Figure 1: PGD-AT epoch by epoch, losses and accuracies; runs cells of Table 1."""
    return _select_trained(qi2024_table1(size), "pgd-at")


def qi2024_figure2(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Figure 2: TRADES epoch by epoch, losses and accuracies; runs cells of Table 1."""
    return _select_trained(qi2024_table1(size), "trades")


def qi2024_figure3(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Figure 3: what each component does to the attack, in five structures; runs cells of Table 1."""
    return [cell for cell in qi2024_table1(size) if cell.attribution and cell.task.name != "mnist"]


def qi2024_figure4(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Figure 4: the same in S4 and DSS with adaptive scaling; runs cells of Table 2."""
    return [cell for cell in qi2024_table2(size) if cell.attribution and cell.task.name != "mnist"]


def qi2024_figure5(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, Figure 5: standard training under attack, epoch by epoch; runs cells of Table 1."""
    return _select_trained(qi2024_table1(size), "standard")


def _select_trained(cells: list[Cell], kind: Kind) -> list[Cell]:
    return [cell for cell in cells if cell.goal.kind == kind]


def qi2024_versions(size: Size = "full") -> list[Cell]:
    """Qi et al. 2024, S4 under PGD-AT as text and code can be read: pixels or planes, with GELU or without."""
    ways = [Reading(layout, act) for layout in get_args(Layout) for act in get_args(Version)]
    if size == "full":
        cells = [make_published("qi2024-versions", "s4", "cifar10", "pgd-at", reading=way) for way in ways]
        return [replace(cell, tags=(*cell.tags, *way)) for cell, way in zip(cells, ways, strict=True)]
    bent = digits_cell("qi2024-versions", "s4", "pgd-at")
    assert isinstance(bent.model.block, ResidualConfig)
    straight = replace(bent.model, block=replace(bent.model.block, activation="none"))
    return [replace(bent, tags=(*bent.tags, "gelu")), replace(bent, tags=(*bent.tags, "none"), model=straight)]


def qi2024_error_growth(size: Size = "full") -> list[Study]:
    """Qi et al. 2024, Theorem 4.1.1: the output error of a perturbed input over the length; bounds, mean, attack."""
    lengths = (4, 8, 16, 32, 64, 128, 256) if size == "full" else (4, 8, 16, 32)
    return [Study("qi2024-error-growth", ("layers",), "error_growth.over_length", (("lengths", lengths),))]


def make_published(
    recipe: str,
    structure: Structure,
    dataset: Dataset,
    kind: Kind,
    ads: AdSKind | None = None,
    reading: Reading = READING,
) -> Cell:
    """One cell of the tables at its published settings."""
    eps, step, beta = THREATS[dataset]
    choose = "clean" if kind == "standard" else "robust"
    budget = budget_of(robustness_training(dataset), track_test=True, track_seen=SEEN, choose=choose)
    options = (("augment", True), ("layout", reading.layout)) if dataset == "cifar10" else ()
    attack = AttackPlan("standard", "linf", eps, samples=2000, on=("best_by_test", "last", "best"), batch_size=500)
    tags = (structure, dataset, kind) if ads is None else (structure, dataset, kind, ads)
    return Cell(
        recipe,
        tags,
        robustness(structure, dataset, ads=ads, activation=reading.activation),
        TaskChoice(dataset, options),
        Goal(kind, "linf", eps, steps=10, step_size=step, beta=beta),
        budget,
        (attack,),
        attribution=kind != "standard",
        seed=SEED,
    )
