"""kill -9 at random moments: what is resumed ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "kill_target.py"), str(folder), str(out)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
    return process


def finish(folder: Path, out: Path) -> dict[str, object]:
    process = start(folder, out)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    record: dict[str, object] = json.loads(out.read_text())
    return record


def pieces(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))


def kill_later(folder: Path, out: Path, chance: random.Random) -> None:
    """Wait for a few more pieces and some random time on top, then kill -9: in the midst of work or of writing."""
    enough = pieces(folder) + chance.randint(1, 3)
    process = start(folder, out)
    while process.poll() is None and pieces(folder) < enough:
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.05))
    process.kill()
    process.communicate()


def check(tmp_path: Path, times: int) -> None:
    whole = finish(tmp_path / "whole", tmp_path / "whole.json")
    chance = random.Random(7)
    begun = []
    for _ in range(times):
        kill_later(tmp_path / "cut", tmp_path / "cut.json", chance)
        begun.append(pieces(tmp_path / "cut"))
    assert 0 < begun[0] < pieces(tmp_path / "whole")  # killed in the middle
    assert finish(tmp_path / "cut", tmp_path / "cut.json") == whole
    assert pieces(tmp_path / "cut") == pieces(tmp_path / "whole")


def test_killed_once_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    check(tmp_path, 1)


@pytest.mark.slow
def test_killed_ten_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    check(tmp_path, 10)
