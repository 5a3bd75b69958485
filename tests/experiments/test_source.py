"""A file that changed since a run was trained on it: no call answers with the numbers of another file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import small_cell

from resolvent.experiments import Budget, Cell, TaskChoice, run_cell
from resolvent.experiments.store.folder import RunError
from resolvent.experiments.store.source import SOURCE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, x=rng.random((400, 12, 1), dtype=np.float32), y=np.arange(400) % 10)
    return path


@pytest.fixture
def cell(file: Path) -> Cell:
    return small_cell(task=TaskChoice("mine", file=str(file)), budget=Budget(epochs=1, batch_size=32), attacks=())


def exchange_labels(file: Path) -> None:
    """The same values, counts, classes and scales."""
    with np.load(file) as held:
        x, y = held["x"], held["y"]
    np.savez(file, x=x, y=y[::-1])


def test_a_finished_run_is_not_the_answer_for_another_file(cell: Cell, file: Path, tmp_path: Path) -> None:
    done = run_cell(cell, tmp_path / "run", tell=lambda line: None)
    assert run_cell(cell, tmp_path / "run")["training"] == done["training"]
    exchange_labels(file)
    with pytest.raises(RunError, match=r"mine\.npz has changed since .* --overwrite"):
        run_cell(cell, tmp_path / "run")
    file.unlink()  # gone, not changed: what was found stays found
    assert run_cell(cell, tmp_path / "run")["training"] == done["training"]


def test_a_stopped_run_does_not_go_on_with_another_file(cell: Cell, file: Path, tmp_path: Path) -> None:
    run_cell(cell, tmp_path / "run", tell=lambda line: None)
    (tmp_path / "run" / "record.json").unlink()
    exchange_labels(file)
    with pytest.raises(RunError, match="has changed"):
        run_cell(cell, tmp_path / "run")


def test_the_file_of_the_test_split_counts_too(cell: Cell, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "test.npz"
    other.write_bytes(file.read_bytes())
    both = replace(cell, task=replace(cell.task, options=(("test", str(other)),)))
    run_cell(both, tmp_path / "run", tell=lambda line: None)
    exchange_labels(other)
    with pytest.raises(RunError, match=r"test\.npz has changed"):
        run_cell(both, tmp_path / "run")


def test_of_older_runs_and_damaged_notes_nothing_is_known(cell: Cell, file: Path, tmp_path: Path) -> None:
    done = run_cell(cell, tmp_path / "run", tell=lambda line: None)
    note = tmp_path / "run" / SOURCE
    note.write_text(note.read_text()[:-9])
    exchange_labels(file)
    assert run_cell(cell, tmp_path / "run")["training"] == done["training"]
    note.unlink()
    assert run_cell(cell, tmp_path / "run")["training"] == done["training"]
    assert not note.exists()  # what the file holds now says nothing of what it held then


def test_a_refused_call_holds_nobody_to_its_file(cell: Cell, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(ValueError, match=r"mine\.npz"):
        run_cell(cell, tmp_path / "run")
    file.write_bytes(whole)
    assert "training" in run_cell(cell, tmp_path / "run", tell=lambda line: None)
