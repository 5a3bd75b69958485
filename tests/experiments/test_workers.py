"""How workers on one machine share a list of cells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from resolvent.experiments import workers
from resolvent.experiments.store.store import open_store
from resolvent.experiments.workers import PART, begin_apart


def test_a_process_of_its_own_takes_the_cells_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART, raising=False)
    assert begin_apart("abc") == ["a", "b", "c"]
    assert begin_apart("") == []


@pytest.mark.parametrize("number_of_workers", [1, 2, 3, 7])
@pytest.mark.parametrize("cells", [1, 2, 5, 10])
def test_workers_begin_in_parts_of_their_own_and_see_every_cell(
    number_of_workers: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, first = list(range(cells)), []
    for number in range(number_of_workers):
        monkeypatch.setenv(PART, f"{number}/{number_of_workers}")
        order = begin_apart(listed)
        first.append(order[0])
        assert sorted(order) == listed
        assert order == [(order[0] + i) % cells for i in range(cells)]  # on from there, then those before
    assert len(set(first)) == min(number_of_workers, cells)


def test_each_worker_is_told_its_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = []

    def start(command: Sequence[str], environment: dict[str, str], errors: object) -> subprocess.Popen[bytes]:
        lines.append(environment[PART])
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(workers, "_start", start)
    workers.work_together(["run"], open_store(tmp_path), [], 3, print, lambda done: None)
    assert lines == ["0/3", "1/3", "2/3"]
