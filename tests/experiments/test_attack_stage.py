"""The attack stage: one evaluation for all checkpoints that hold the same weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resolvent.experiments import TaskChoice, run_cell
from resolvent.experiments.stages import stages

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell


def test_equal_weights_are_attacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a single epoch the best weights are the last."""
    cell, whole, seen = small_cell(task=TaskChoice("digits", samples=32)), stages.curve_together, []

    def counted(*inputs: Any) -> Any:
        seen.append(inputs[-2])  # the folder
        return whole(*inputs)

    monkeypatch.setattr(stages, "curve_together", counted)
    record = run_cell(replace(cell, budget=replace(cell.budget, epochs=1)), tmp_path / "run", tell=lambda line: None)
    best, last = (record["attacks"][f"fast-linf-0.05-{name}"] for name in ("best", "last"))
    assert seen == [tmp_path / "run/attack/fast-linf-0.05-best"]
    assert (best["checkpoint"], last["checkpoint"]) == ("best", "last")
    assert best | {"checkpoint": "last"} == last
