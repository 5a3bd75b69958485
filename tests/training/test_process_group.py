"""Two processes with the same global batch train like one; random numbers follow the sample, not the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resolvent.training.process_group import ProcessGroup

TARGET = Path(__file__).parent / "process_group_target.py"


@pytest.mark.parametrize("count", [0, 1, 5, 64, 101])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_are_shared_out_once(count: int, size: int) -> None:
    parts = [torch.arange(count)[ProcessGroup(rank, size).rows(count)] for rank in range(size)]
    assert torch.equal(torch.cat(parts), torch.arange(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def rows_of(folder: Path, norm: str, processes: int) -> list[dict[str, float]]:
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    run = subprocess.run(
        [*start, str(TARGET), str(folder), norm], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows: list[dict[str, float]] = json.loads(run.stdout.strip().splitlines()[-1])["rows"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_two_processes_train_like_one(tmp_path: Path, norm: str) -> None:
    one, two = rows_of(tmp_path / "one", norm, 1), rows_of(tmp_path / "two", norm, 2)
    assert len(one) == 5
    assert one[-1]["step"] == 20
    for single, shared in zip(one, two, strict=True):
        for name, value in single.items():
            assert shared[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    files = {p.name for p in (tmp_path / "two").rglob("*") if p.is_file()}
    assert {"summary.json", "state.safetensors", "metrics.jsonl"} <= files
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == 5
