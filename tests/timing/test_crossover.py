"""benchmarks/cpu/crossover.py without a GPU: the long table on tiny shapes, what it refuses, and where ways cross."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT))
    yield importlib.import_module("benchmarks.cpu.crossover")
    sys.path.remove(str(ROOT))


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "crossover.json"
    words = ["--tiny", "--out", str(path), "--commit", "abc", "--threads", str(torch.get_num_threads())]
    monkeypatch.setattr(sys, "argv", ["crossover.py", *words])
    return path


def test_every_way_is_checked_and_timed(program: Any, out: Path) -> None:
    assert program.main() == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["commit"] == "abc"
    works = program.crossover_long.WORKS
    assert [(row["dtype"], row["l"], row["b"]) for row in record["rows"]] == [
        ("bfloat16", 128, 4), ("bfloat16", 256, 2), ("float32", 128, 4), ("float32", 256, 2),
    ]  # fmt: skip
    for row in record["rows"]:
        assert {name: set(way["ms"]) for name, way in row["ways"].items()} == {
            "toeplitz": set(works), "fft": set(works), "blocks of 32": set(works), "dense blocks of 32": set(works),
            "layer": set(works[:2]),
        }  # fmt: skip


@pytest.mark.parametrize(("part", "message"), [("forward", "1.0e-02 where 1e-05"), ("adjoint", "1.0e-02 where 1e-04")])
def test_no_time_for_wrong_numbers(
    program: Any, out: Path, monkeypatch: pytest.MonkeyPatch, part: str, message: str
) -> None:
    right = getattr(program.crossover_long.Transforms, part)

    def wrong(self: Any, *given: Tensor) -> Tensor:
        found: Tensor = right(self, *given)
        return found * 1.01

    monkeypatch.setattr(program.crossover_long.Transforms, part, wrong)
    assert program.main() == 1
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    fine = [row["ways"]["fft"] for row in rows if row["dtype"] == "float32"]
    assert all(message in way["refused"] and "ms" not in way for way in fine)
    assert all("ms" in row["ways"]["toeplitz"] for row in rows)


def test_the_quickest_way(program: Any) -> None:
    long = program.crossover_long

    def row(l: int, **times: float | None) -> dict[str, Any]:
        ways = {
            name.replace("_", " "): {"refused": "wrong"} if ms is None else {"ms": dict.fromkeys(long.WORKS, ms)}
            for name, ms in times.items()
        }
        return {"samples": 8, "dtype": "float32", "l": l, "b": 1, "ways": ways}

    found = long.quickest([row(128, toeplitz=1.0, fft=2.0), row(256, toeplitz=None, fft=2.0, dense_blocks_of_8=1.0)])
    assert [(best["l"], best["way"], best["ms"]) for best in found] == [
        (128, "toeplitz", 1.0), (256, "fft", 2.0), (256, "dense blocks of 8", 1.0),
    ]  # fmt: skip
