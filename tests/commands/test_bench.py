"""`resolvent bench`: numbers that mean something, a table that fits, no speed of a wrong layer, mistakes told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from resolvent import cli
from resolvent.commands.bench import execute
from resolvent.commands.bench.options import Bench
from resolvent.timing import measure, work
from resolvent.timing.case import Case, Figures, Outcome, measure_case


def outcome(case: Case, error: float = 1e-7) -> Outcome:
    return Outcome(case, Figures(1.0, 2.0, 0.01, 3.0), Figures(10.0, 40.0, None, 9.0), error, 0.25)


def test_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "BUDGET_S", 0.01)
    monkeypatch.setitem(measure.COPIED, "cpu", 2**22)
    case = Case("S5", batch=2, length=40, d_model=4)
    ours, plain = work.main(case, "ours"), work.main(case, "plain")
    assert 0 < ours["error"] < 1e-4
    assert ours["floor_ms"] > 0
    for held in (ours, plain):
        figures = Figures(**held["figures"])
        assert figures.forward_ms > 0
        assert figures.backward_ms > 0
        assert figures.extra_mb >= 0
    assert ours["figures"]["step_ms"] > 0
    assert plain["figures"]["step_ms"] is None


def test_ratios() -> None:
    found = outcome(Case("S4D"))
    assert found.faster == (10.0, 20.0)
    assert found.of_copy == 0.25
    assert found.as_dict()["faster_backward"] == 20.0


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(execute, "measure_case", outcome)
    place = tmp_path / "deep" / "bench.json"
    assert cli.main(["bench", "--length", "64", "--d-state", "8", "--json", str(place)]) == 0
    text = capsys.readouterr().out
    assert "batch 8, length 64, width 64" in text
    assert "10.0 / 20.0" in text
    held = json.loads(place.read_text())
    assert [each["case"]["layer"] for each in held["outcomes"]] == list(execute.NAMES)
    assert held["outcomes"][-1]["case"]["d_state"] is None  # RG-LRU has no such choice
    assert held["versions"]["torch"] == torch.__version__


def test_a_wrong_layer_gets_no_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(execute, "measure_case", lambda case: outcome(case, 1e-2))
    assert cli.main(["bench", "--layer", "S4"]) == 1
    text = capsys.readouterr().out
    assert "differ from its plain version's by 1.0e-02; it is not timed" in text
    assert "10.0 / 20.0" not in text


SLOW = Outcome(Case("RGLRU"), Figures(123.4, 1234.5, 0.123, 1234), Figures(12345.6, 99999.9, None, 9999), 0, 1)


@pytest.mark.parametrize(("width", "tables"), [(80, 1), (60, 2), (40, 2), (5, 9)])
def test_a_narrow_terminal_splits_the_table_and_cuts_nothing(width: int, tables: int) -> None:
    console = Console(width=width, force_terminal=True, color_system=None, highlight=False, file=io.StringIO())
    execute.show([SLOW, outcome(Case("S4"))], [], Bench(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the buffer above
    assert "…" not in text
    rows = [line for line in text.splitlines() if line.startswith("RGLRU")]
    assert len(rows) == tables
    assert " ".join(" ".join(rows).replace("RGLRU", "").split()) == " ".join(execute.columns(SLOW).values())
    assert max(map(len, rows)) <= max(width, 20)


def test_a_log_has_one_table() -> None:
    console = Console(width=20, force_terminal=False, file=io.StringIO())
    execute.show([SLOW], [], Bench(), console)
    assert console.file.getvalue().count("RGLRU") == 1  # type: ignore[attr-defined]  # the buffer above


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "s55"], "did you mean S5"),
        (["--length", "0"], "--length must be at least 1"),
        (["--d-model", "-3"], "--d-model must be at least 1"),
        (["--layer", "rglru", "--d-state", "4"], "leave --d-state out"),
        (["--device", "abacus"], "--device 'abacus' cannot be used here"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("resolvent bench: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("way", ["ours", "plain"])
def test_what_a_layer_refuses_is_told(way: str) -> None:
    with pytest.raises(ValueError, match="even"):
        work.main(Case("S4D", batch=1, length=4, d_model=2, d_state=3), way)


@pytest.mark.slow
def test_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure_case(Case("EMA", batch=1, length=32, d_model=2, threads=1))
    assert found.error < 1e-4
    assert found.plain.forward_ms > 0
    assert Bench(layer="s4d", batch=1, length=8, d_model=2, d_state=3).layer == "s4d"
    assert cli.main(["bench", "--layer", "s4d", "--d-state", "3", "--batch", "1", "--length", "8"]) == 2
    assert "even" in capsys.readouterr().err


def test_the_copy_rate_is_one_of_this_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPIED, "cpu", 2**22)
    assert 1e8 < measure.copy_rate(torch.device("cpu")) < 1e13


def test_memory_of_work_is_seen() -> None:
    """In a process of its own, as the command does: here earlier tests have left memory that is taken again."""
    code = (
        "import torch; from resolvent.timing import measure; "
        "print(measure.peak_extra_mb(lambda: torch.ones(2**24).sum()))"  # 64 MiB
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 30 < float(done.stdout) < 200
