"""Runs of the generalisation study on one page: means over the seeds that trained, the others counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resolvent.report.figures.generalisation import gap_findings
from resolvent.report.run_page import certificate

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def record(T: int, seed: int, test: float | None) -> dict[str, Any]:
    """As `run_cell` leaves it; without a test accuracy it diverged."""
    layer = {"class": "ScalarS6Config", "abscissa": 0.1}
    cell = {"recipe": "gap", "tags": ["majority", f"T={T}"], "seed": seed, "bound": {"delta": 0.05},
            "task": {"name": "majority"}, "model": {"block": {"layer": layer}}}  # fmt: skip
    held: dict[str, Any] = {"format": 1, "cell": cell, "task": {"name": "majority", "length": T}}
    if test is None:
        return held | {"failed": "fit: loss is not finite"}
    gap = {"train_clean": 0.9, "test_clean": test, "loss": None}
    rows = [{"epoch": 1, "s_A": 0.05}, {"epoch": 2, "s_A": 0.01}]
    done = {"T": T, "s_A": 0.01, "gap": gap, "log_capacity": 9.0, "bound": 8.2}
    return held | {"training": {"rows": rows, "summary": {"best": {"epoch": 2}}}, "generalisation": done}


def test_failed_seeds_are_counted_and_not_averaged() -> None:
    cells = {
        "majority,T=50": [record(50, 0, 0.8), record(50, 1, 0.7), record(50, 2, None)],
        "majority,T=100": [record(100, 0, None)],
        "majority,T=25": [record(25, 0, 0.85)],
    }
    (found,) = gap_findings(cells)
    rows = {row[0]: dict(zip(found["table"]["columns"], row, strict=True)) for row in found["table"]["rows"]}
    assert rows["majority T=50"]["diverged"] == 1
    assert rows["majority T=50"]["test, %"] == pytest.approx(75.0)
    assert rows["majority T=50"]["loss, test - train"] is None
    assert rows["majority T=100"]["test, %"] is None
    assert "5 runs, of which 2 diverged" in found["text"]
    accuracy, abscissa = found["charts"]
    assert accuracy["series"][1] == {"name": "test", "x": [25, 50], "y": [85.0, 75.0]}
    assert abscissa["series"][0]["y"] == [0.1, 0.05, 0.01]
    json.dumps(found, allow_nan=False)


def test_other_recipes_have_none() -> None:
    assert gap_findings({"s4": [{"cell": {"recipe": "x", "tags": ["s4"], "seed": 0}}]}) == []


def test_the_smoothed_curve_is_drawn_where_there_is_no_bound(tmp_path: Path) -> None:
    points = [{"radius": 0.1, "certified": 0.8, "attacked": 0.9}, {"radius": 0.2, "certified": 0.5, "attacked": None}]
    smooth = {"sigma": 0.25, "n": 1000, "alpha": 0.001, "curve": points}
    cell = {"recipe": "r", "tags": ["s5"], "seed": 0}
    held = {"cell": cell, "certificate": {"gain": None, "reason": "norm breaks it", "curve": [], "smoothing": smooth}}
    shown = certificate("s5", held)
    assert "<svg" in shown["svg"]
    assert "smoothed by noise of deviation 0.25, 1,000 copies" in shown["caption"]
    assert "norm breaks it" in shown["caption"]
    bare = certificate("s5", {"cell": cell, "certificate": {"gain": None, "reason": "norm breaks it", "curve": []}})
    assert bare["svg"] == ""
