"""benchmarks/gpu/evidence: what a run that is cut short has written, and that the next one goes on from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.gpu import evidence  # noqa: E402
from benchmarks.gpu.outcomes import read  # noqa: E402

CASES = """
import os, pytest, time
def test_holds(): pass
def test_breaks(): assert 1 + 1 == 3, "they differ"
@pytest.mark.skip
def test_waits(): pass
@pytest.fixture
def late():
    yield
    raise RuntimeError("at its end")
def test_ends_badly(late): pass
def test_hangs():
    if "HANG" in os.environ: time.sleep(60)
"""


def start_pytest(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    plugin = "-p", "benchmarks.gpu.outcomes", "--outcomes", "seen.txt"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, *words, "test_cases.py"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def test_names_outlast_a_run_that_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    seen, running = tmp_path / "seen.txt", start_pytest(tmp_path, HANG="1")
    while running.poll() is None and not (seen.exists() and "test_hangs" in seen.read_text()):
        time.sleep(0.05)
    running.kill()
    running.communicate()
    last = {name.partition("::")[2]: outcome for outcome, name in read(seen)}
    assert last == {"test_holds": "passed", "test_breaks": "failed", "test_waits": "skipped",
                    "test_ends_badly": "failed", "test_hangs": "began"}  # fmt: skip
    assert "they differ" in seen.read_text()
    (tmp_path / "done.txt").write_text(seen.read_text())
    assert "1 passed, 4 deselected" in start_pytest(tmp_path, "--done", "done.txt").communicate()[0]
    assert read(seen)[-1] == ("passed", "test_cases.py::test_hangs")


def test_parts_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(name: str, code: str, seconds: float = 60) -> Any:
        return evidence.Part(name, seconds, lambda out, commit: [sys.executable, "-c", code])

    parts = part("first", "print('well')"), part("slow", "import time; time.sleep(60)", 1), part("bad", "raise OSError")
    monkeypatch.setattr(evidence, "PARTS", parts)

    def run(commit: str = "a") -> int:
        monkeypatch.setattr(sys, "argv", ["evidence", "--out", str(tmp_path / "out"), "--commit", commit])
        return evidence.main()

    assert run() == 1
    assert json.loads((tmp_path / "out" / "state.json").read_text())["parts"] == {"first": 0, "bad": 1}
    assert "slow: 1 s, its time was up" in (said := capsys.readouterr().out)
    assert "left: slow" in said
    monkeypatch.setattr(evidence, "PARTS", (parts[0], part("slow", "pass"), parts[2]))
    assert run() == 1  # one of them found something wrong
    assert (tmp_path / "out" / "first.log").read_text() == "well\n"  # once
    assert "nothing is left" in capsys.readouterr().out
    monkeypatch.setattr(evidence, "PARTS", parts[:1])
    assert run("b") == 0  # of another commit nothing is kept
    assert (tmp_path / "out" / "first.log").read_text() == 2 * "well\n"


def test_the_rows_are_there() -> None:
    """Every word finds a row of benchmarks.gpu on a GPU, and every name a layer of benchmarks.composed."""
    from benchmarks.composed.modules import contenders
    from benchmarks.gpu import scans, step

    names = [case.name for kind in (step, scans) for case in kind.cases(torch.device("cuda"), False)]
    assert all(any(word in name for name in names) for word in evidence.CHANGED)
    assert set(evidence.LAYERS) <= {c.name for c in contenders()}
