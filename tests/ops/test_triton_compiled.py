"""Kernels compiled for a GPU that need not be there: what the interpreter takes and the compiler may not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton, which no extra of ours brings")
sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.gpu.targets.cases import every_kernel

ROOT = Path(__file__).parents[2]


def test_every_kernel_is_known_by_its_name() -> None:
    found = every_kernel()
    assert "resolvent.ops.modes.bank_response_triton.gradient_kernel" in found
    for name in found:
        module, kernel = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), kernel), name


def test_one_step_of_s4(tmp_path: Path) -> None:
    """A size of one is a constant to the compiler, which then refuses a loop that changes it."""
    free = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    place = os.pathsep.join([str(ROOT / "src"), *sys.path])
    command = [sys.executable, "-m", "benchmarks.gpu.targets", "--only", "one step of S4", "--chip", "90"]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "rows.json")], cwd=ROOT, env={**free, "PYTHONPATH": place}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert {row["kernel"].rsplit(".", 1)[1] for row in rows} >= {"rows_kernel", "gradient_kernel"}
