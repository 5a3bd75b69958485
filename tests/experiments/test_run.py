"""A run survives kills, damage and a second writer, and comes to the same record."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_files import cut, flip

from resolvent.disk import unseal
from resolvent.experiments import Cell, Folder, Goal, RunError, Taken, run_cell
from resolvent.experiments.store.lock import Lock
from resolvent.experiments.sweep import sweep

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell


def quiet(line: str) -> None:
    return


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes that are killed
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, run_cell(small_cell(), folder, tell=quiet)


def timeless(record: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key not in ("times", "digest")}, sort_keys=True)


def test_a_run_tells_everything(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = undisturbed
    assert {p.name for p in folder.iterdir()} == {
        "attack", "cell.json", "checkpoint", "config.json", "metrics.jsonl", "preprocess.json", "record.json",
        "stage", "summary.json",
    }  # fmt: skip
    assert unseal(json.loads((folder / "record.json").read_text())) == json.loads(json.dumps(record))
    assert len(record["training"]["rows"]) == 3
    assert set(record["attacks"]) == {"fast-linf-0.05-best", "fast-linf-0.05-last"}
    best = record["attacks"]["fast-linf-0.05-best"]
    assert 0 <= best["accuracy"] <= best["clean_accuracy"] <= 1
    assert record["task"]["licence"] == "CC BY 4.0"
    assert Cell.from_dict(record["cell"]) == small_cell()
    assert Folder(folder).cell() == small_cell()


def test_a_complete_run_is_read_not_repeated(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    folder, record = undisturbed
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    assert run_cell(small_cell(), folder, tell=quiet) == json.loads(json.dumps(record))
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()} == before


def killed(folder: Path, after: float) -> bool:
    """Start the cell in a process and kill it; whether it was still at work."""
    script = Path(__file__).parent / "small.py"
    process = subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "config.json").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # imports take most of the time; the clock starts when the run does
    time.sleep(after)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return alive


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_comes_to_the_same_record(
    tmp_path: Path, undisturbed: tuple[Path, dict[str, Any]], kills: int
) -> None:
    random.seed(kills)
    moments = [random.uniform(0, 0.1 if i % 4 == 0 else 2.0) for i in range(kills)]  # the first while it trains
    hit = sum(killed(tmp_path / f"run{i // 4}", after) for i, after in enumerate(moments))
    assert hit, "no process was killed at work"
    for folder in sorted(tmp_path.iterdir()):
        assert timeless(run_cell(small_cell(), folder, tell=quiet)) == timeless(undisturbed[1])


@pytest.mark.parametrize("damage", [flip, cut])
def test_damaged_weights_are_named_set_aside_and_made_again(
    tmp_path: Path, undisturbed: tuple[Path, dict[str, Any]], damage: Any
) -> None:
    cell, lines = replace(small_cell(), attacks=()), []
    first = run_cell(cell, tmp_path / "run", tell=quiet)
    damage(tmp_path / "run" / "checkpoint" / "best" / "model.safetensors")
    again = run_cell(cell, tmp_path / "run", tell=lines.append)
    assert any("checkpoint/best/model.safetensors" in line for line in lines)
    assert timeless(again) == timeless(first)
    assert (tmp_path / "run" / "damaged" / "checkpoint" / "best" / "model.safetensors").is_file()


def test_a_damaged_state_is_named_and_training_starts_again(tmp_path: Path) -> None:
    cell, lines = replace(small_cell(), attacks=()), []
    whole = run_cell(cell, tmp_path / "whole", tell=quiet)
    run_cell(cell, tmp_path / "run", tell=quiet)
    for name in ("record.json", "summary.json", "checkpoint/sums.json"):  # as if killed before the end
        (tmp_path / "run" / name).unlink()
    flip(tmp_path / "run" / "checkpoint" / "state.safetensors")
    assert timeless(run_cell(cell, tmp_path / "run", tell=lines.append)) == timeless(whole)
    assert any("state.safetensors is damaged" in line for line in lines)


def test_a_damaged_stage_is_done_again(tmp_path: Path, undisturbed: tuple[Path, dict[str, Any]]) -> None:
    cell = small_cell()
    first = run_cell(cell, tmp_path / "run", tell=quiet)
    path = tmp_path / "run" / "stage" / "attacks.json"
    path.write_text(path.read_text().replace('"accuracy": 0', '"accuracy": 1', 1))
    (tmp_path / "run" / "record.json").unlink()
    assert timeless(run_cell(cell, tmp_path / "run", tell=quiet)) == timeless(first)


def test_other_settings_are_refused_by_field(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    other = replace(small_cell(), goal=Goal("pgd-at", eps=0.06, steps=2))
    with pytest.raises(RunError, match=r"goal\.eps was 0\.05 there and is 0\.06 now"):
        run_cell(other, undisturbed[0], tell=quiet)


def test_two_writers(tmp_path: Path) -> None:
    with Lock(tmp_path / "run"), pytest.raises(Taken):
        run_cell(small_cell(), tmp_path / "run", tell=quiet)


def test_a_run_that_diverges_has_a_record_that_says_so(tmp_path: Path) -> None:
    cell = small_cell()
    wild = replace(cell, budget=replace(cell.budget, lr=1e30), attacks=())
    record = run_cell(wild, tmp_path / "run", tell=quiet)
    assert "not finite" in record["failed"]


def test_a_sweep_leaves_to_others_what_they_hold(tmp_path: Path) -> None:
    cells = [replace(small_cell(), attacks=(), seed=seed) for seed in (0, 1)]
    with Lock(tmp_path / cells[0].place):
        records = sweep(cells, tmp_path, tell=quiet, wait=False)
    assert [record["cell"]["seed"] for record in records] == [1]
    records = sweep(cells, tmp_path, tell=quiet)
    assert [record["cell"]["seed"] for record in records] == [0, 1]


@pytest.mark.skipif(os.name == "nt", reason="needs /dev/full-like disk limits")
def test_nothing_good_is_lost_when_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(small_cell(), attacks=())
    first = run_cell(cell, tmp_path / "run", tell=quiet)
    before = (tmp_path / "run" / "record.json").read_bytes()
    folder = Folder(tmp_path / "run")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write("record.json", {"other": 1})
    assert (tmp_path / "run" / "record.json").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*.part"))
    assert unseal(json.loads(before)) == json.loads(json.dumps(first))
