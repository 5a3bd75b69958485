"""The attacks of the standard list beside pyautoattack's on 1,000 samples: the script that writes the record, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def rows(path: Path) -> dict[tuple[str, str], bool]:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["samples"] == 1000
    return {(row["norm"], row["attack"]): row["met"] for row in record["rows"]}


def test_the_kept_record_is_whole() -> None:
    attacks = ("apgd-ce", "apgd-t", "fab-t", "square", "apgd-ce, mean loss")
    kept = rows(BENCHMARKS / "results" / "parity.json")
    assert kept == {(norm, attack): True for norm in ("linf", "l2") for attack in attacks}


@pytest.mark.slow
def test_parity_over_seeds(tmp_path: Path) -> None:
    """About twenty minutes on one core, most of them for two random searches over several seeds."""
    pytest.importorskip("pyautoattack", reason="the parity extra is not installed")
    command = [sys.executable, "-m", "benchmarks.attacks.parity", "--out", str(tmp_path / "parity.json")]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(rows(tmp_path / "parity.json").values())
