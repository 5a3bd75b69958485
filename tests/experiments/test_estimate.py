"""A dry run: an estimate of the right size, soon, whatever the size of the batch."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from resolvent.experiments import estimate as rough
from resolvent.experiments.estimate import duration, estimate, extrapolated
from resolvent.experiments.tasks import open_task

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
    seconds, held = extrapolated(work, rows)
    assert work.rows <= most
    assert held == pytest.approx(800 * rows, rel=1e-6)
    assert seconds >= 0.9 * (0.002 + 0.0005 * rows)  # a busy machine sleeps longer


def test_a_cell() -> None:
    cell = small_cell()
    found = estimate(cell, open_task(cell.task))
    assert found.parameters > 0
    assert found.steps == cell.budget.epochs * -(-len(open_task(cell.task).train) // cell.budget.batch_size)
    assert found.training > 0
    assert found.attacks > 0
    longer = estimate(replace(cell, budget=replace(cell.budget, epochs=5 * cell.budget.epochs)), open_task(cell.task))
    assert longer.steps == 5 * found.steps


def test_durations() -> None:
    assert [duration(s) for s in (42, 720, 12240, 181440)] == ["42 s", "12 min", "3.4 h", "2.1 days"]
