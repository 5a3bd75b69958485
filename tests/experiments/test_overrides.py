"""What the command line may change in a recipe's cells without making them other cells of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resolvent import cli
from resolvent.commands.run.cells import of_worker
from resolvent.commands.run.options import Run
from resolvent.experiments.cell import Budget, Cell
from resolvent.experiments.overrides import override
from resolvent.experiments.recipe import cells_of

ALL = ("bf16", 6, 2000)


def headline() -> Cell:
    (cell,) = cells_of("qi2024-table1", "full", "s4,cifar10,pgd-at")
    assert isinstance(cell, Cell)
    return cell


def test_nothing_asked_changes_nothing() -> None:
    assert override(headline()) == headline()


def test_only_what_is_asked_changes() -> None:
    own, made = headline(), override(headline(), *ALL)
    assert isinstance(made, Cell)
    assert made.budget == replace(own.budget, precision="bf16", evaluate_every=6)
    assert made.attacks == tuple(replace(plan, batch_size=2000) for plan in own.attacks)
    assert replace(made, budget=Budget(), attacks=()) == replace(own, budget=Budget(), attacks=())
    assert Cell.from_dict(made.to_dict()) == made


def test_a_study_stays_as_it_is() -> None:
    (study,) = cells_of("qi2024-error-growth", "small")
    assert override(study, *ALL) is study


def test_workers_are_told() -> None:
    words = of_worker(Run("quickstart", precision="bf16", attack_batch=512, seeds=(3, 4), out="-odd", workers=2))
    assert words == [
        "run", "quickstart", "--seeds", "3", "4", "--out=-odd", "--precision=bf16", "--attack-batch=512", "--no-report"
    ]  # fmt: skip
    assert cli.parse(words) == Run(
        "quickstart", precision="bf16", attack_batch=512, seeds=(3, 4), out="-odd", report=False
    )


@pytest.mark.parametrize("words", [["--evaluate-every", "0"], ["--attack-batch", "-1"]])
def test_bad_counts_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "quickstart", *words]) == 2
    assert f"{words[0]} must be a whole number" in capsys.readouterr().err
