"""A budget of time: a run stops between steps and batches, says what is left, and goes on to the same numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import small_cell

from resolvent.cli import main
from resolvent.experiments import Budget, Cell, run_cell
from resolvent.experiments.how import How
from resolvent.experiments.sweep import sweep
from resolvent.report.evidence import read_evidence
from resolvent.training import Paused


def quiet(line: str) -> None:
    return


def after_calls(count: int) -> Callable[[], bool]:
    """A clock that is asked, not looked at: late from so many questions on."""
    left = iter(range(count))
    return lambda: next(left, None) is None


def same(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("times", "digest")}


@pytest.fixture(scope="module")
def cell() -> Cell:
    return small_cell(budget=Budget(epochs=2, batch_size=32, lr=1e-2))  # states are stored after epochs alone


@pytest.fixture(scope="module")
def whole(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cell(cell, tmp_path_factory.mktemp("whole"), tell=quiet)


def test_a_budget_that_ends_everywhere_leads_to_the_same_record(
    cell: Cell, whole: dict[str, Any], tmp_path: Path
) -> None:
    """One step, stage or batch at a time: as many pauses as there are places to pause at."""
    lines: list[str] = []
    for _ in range(100):
        try:
            record = run_cell(cell, tmp_path, tell=quiet, how=How(late=after_calls(1 + len(lines) // 4)))
            break
        except Paused as stop:
            lines.append(str(stop))
    assert same(record) == same(whole)
    assert any("stopped after step 1 of 6; 5 steps are left, about" in line for line in lines)
    assert any("stopped after step 4 of 6; 2 steps are left" in line for line in lines)
    assert any("training is done" in line for line in lines)
    assert any(re.match(r"attack fast-linf-0\.05-(best|last) stopped after \d+ of \d+ by ", line) for line in lines)
    assert len(lines) > 8


def test_points_of_attacks_go_when_they_are_done_unless_asked_for(cell: Cell, tmp_path: Path) -> None:
    record = run_cell(cell, tmp_path / "small", tell=quiet)
    kept = run_cell(cell, tmp_path / "large", tell=quiet, how=How(points=True))
    assert same(record) == same(kept)
    assert not list((tmp_path / "small").glob("attack/**/*.safetensors"))
    assert list((tmp_path / "large").glob("attack/**/*.safetensors"))
    for folder in ("small", "large"):
        held = json.loads((tmp_path / folder / "attack" / "fast-linf-0.05-best" / "record.json").read_text())
        assert len(held["records"]) == 16


def test_a_sweep_says_what_is_left_and_tells_what_has_ended(cell: Cell, tmp_path: Path) -> None:
    cells, ended = [cell.seeded(seed) for seed in (0, 1)], []
    with pytest.raises(Paused, match=r"lru,digits, seed 0: training stopped after step 2 .*; left: small/lru-digits"):
        sweep(cells, tmp_path, tell=quiet, how=How(late=after_calls(3)))
    with pytest.raises(Paused, match=r"^1 of 2 runs are done; left: small/lru-digits/seed-1$"):
        sweep(cells, tmp_path, tell=quiet, how=How(late=once_done(tmp_path)), ended=ended.append)
    assert ended == ["small/lru-digits/seed-0"]
    assert len(sweep(cells, tmp_path, tell=quiet, how=How(), ended=ended.append)) == 2
    assert ended == ["small/lru-digits/seed-0", "small/lru-digits/seed-1"]


def once_done(root: Path) -> Callable[[], bool]:
    return lambda: (root / "small/lru-digits/seed-0/record.json").is_file()


CALL = ["run", "ptd-conditioning", "--size", "small", "--no-report"]


def test_the_command_stops_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--out", str(tmp_path)]
    assert main([*CALL, *place, "--budget", "1e-9"]) == 124
    output = capsys.readouterr().out
    assert "the budget of 1e-09 s is spent. 0 of 1 runs are done; left: ptd-conditioning/legs/seed-0" in output
    assert "the same command resumes from there" in output
    assert main([*CALL, *place, "--budget", "600"]) == 0


def test_workers_share_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["run", "ptd-transfer", "--no-report", "--workers", "2", "--out", str(tmp_path)]
    assert main([*call, "--budget", "0.01"]) == 124
    assert "runs are done; left: " in capsys.readouterr().out


def test_a_file_to_commit_is_written_as_a_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "evidence"
    call = [*CALL, "--out", str(tmp_path / "runs"), "--evidence", str(saved)]
    assert main(call) == 2
    assert "--evidence and --commit go together" in capsys.readouterr().err
    assert main([*call, "--commit", "0b5c3a0"]) == 0
    (held,) = read_evidence([saved])
    assert (held.recipe, held.tags, held.seed, held.commit) == ("ptd-conditioning", ("legs",), 0, "0b5c3a0")
    assert held.command == "resolvent run ptd-conditioning --size small --only legs --seeds 0"
    assert held.values == read_evidence([tmp_path / "runs"])[0].values


@pytest.mark.parametrize("wrong", ["0", "-1", "nan"])
def test_a_budget_that_is_none_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, f"--budget={wrong}"]) == 2
    assert "--budget must be a finite number above 0" in capsys.readouterr().err


def test_processes_of_torchrun_have_no_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*CALL, "--budget=5"]) == 2
    assert "torchrun's would not stop at the same step" in capsys.readouterr().err
