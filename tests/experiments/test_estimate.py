"""A dry run: an estimate of the right size, soon, whatever the size of the batch."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from resolvent.commands.run.forecast import foretell
from resolvent.experiments import TaskChoice
from resolvent.experiments import estimate as rough
from resolvent.experiments.estimate import duration, estimate, extrapolate_step
from resolvent.experiments.sweep import sweep
from resolvent.experiments.tasks import glimpse, open_task
from resolvent.usage.error import UsageError

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell


class Work:
    """A loss that sleeps and saves in proportion to its rows, above something that every step costs."""

    def __init__(self, fixed: float, each: float) -> None:
        self.fixed, self.each, self.rows = fixed, each, 0

    def __call__(self, rows: int) -> torch.Tensor:
        self.rows = max(self.rows, rows)
        time.sleep(self.fixed + self.each * rows)
        x = torch.ones(100 * rows, dtype=torch.float64, requires_grad=True)
        for _ in range(3):  # an attack, whose graphs are gone before the step has its own
            (x * x).sum().backward()
        return (x * x).sum()  # saves x twice, which takes 800 bytes a row once


@pytest.mark.parametrize(("rows", "most"), [(1, 1), (2, 2), (7, 7), (4096, 512)])
def test_a_part_of_the_batch_tells_the_rest(rows: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rough, "MOMENT", 0.05)
    work = Work(0.002, 0.0005)
    seconds, held = extrapolate_step(work, rows)
    assert work.rows <= most
    assert held == pytest.approx(800 * rows, rel=1e-6)
    assert seconds >= 0.9 * (0.002 + 0.0005 * rows)  # a busy machine sleeps longer


def test_a_cell() -> None:
    cell = small_cell()
    found = estimate(cell)
    assert found.parameters > 0
    assert found.steps == cell.budget.epochs * -(-len(open_task(cell.task).train) // cell.budget.batch_size)
    assert found.training > 0
    assert found.attacks > 0
    longer = estimate(replace(cell, budget=replace(cell.budget, epochs=5 * cell.budget.epochs)))
    assert longer.steps == 5 * found.steps


def test_durations() -> None:
    assert [duration(s) for s in (42, 720, 12240, 181440)] == ["42 s", "12 min", "3.4 h", "2.1 days"]


@pytest.mark.parametrize(("name", "train", "test"), [("pathfinder", 160_000, 20_000), ("listops", 96_000, 2_000)])
def test_of_a_generated_set_only_a_batch_is_made(
    name: str, train: int, test: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    task, n_train, n_test = glimpse(TaskChoice(name), 3)
    assert (len(task.train), n_train, n_test) == (3, train, test)
    assert glimpse(TaskChoice(name, samples=50), 3)[1:] == (50, 50)
    glimpsed = glimpse(TaskChoice("digits"), 3)
    assert (len(glimpsed[0].train), len(glimpsed[0].test)) == glimpsed[1:]


def test_data_that_are_not_here_stop_only_their_own_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "data"))
    here = small_cell()
    gone = replace(here, tags=("lru", "aan"), task=TaskChoice("aan"))
    heard: list[str] = []
    with pytest.raises(FileNotFoundError, match=r"1 of 2 cells were left out, all others are done\. aan: "):
        sweep([gone, here], tmp_path / "runs", tell=heard.append)
    assert (tmp_path / "runs" / here.place / "record.json").exists()
    assert any(line.startswith("lru,aan: left out, aan: ") for line in heard)
    console = Console(file=StringIO(), width=200)
    with pytest.raises(UsageError, match=r"the others would run\. aan: "):
        foretell([gone, here], "cpu", console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == f"{gone.place}: its data are not here"
    assert "parameters" in lines[1]
