"""Kills, damaged files, hostile data and options: a small sample of each here, all of them with `make test-slow`.

HOSTILE_KILLS and HOSTILE_CASES change the counts; benchmarks/results/hostile.json tells what was found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import files
import kills
import options

KILLS = int(os.environ.get("HOSTILE_KILLS", "1000"))
CASES = int(os.environ.get("HOSTILE_CASES", "10000"))
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_a_few_damaged_files() -> None:
    assert files.run(12)["wrong"] == []


def test_a_few_hostile_files_and_options() -> None:
    assert options.run(40)["wrong"] == []


@forks
def test_a_few_kills() -> None:
    assert kills.run(3, seed=1)["wrong"] == []


@pytest.mark.slow
def test_damaged_files() -> None:
    assert files.run(CASES // 2)["wrong"] == []


@pytest.mark.slow
def test_hostile_files_and_options() -> None:
    assert options.run(CASES - CASES // 2)["wrong"] == []


@forks
@pytest.mark.slow
def test_kills() -> None:
    found = kills.run(KILLS)
    assert found["wrong"] == []
    assert found["kills"] == KILLS
