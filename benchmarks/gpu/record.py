"""What benchmarks/gpu writes down: each row with the commit and day of its own, each run with its ceilings."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import UNKNOWN, command
from benchmarks.gpu.case import Ceilings

Rows = list[dict[str, Any]]


def held(out: Path, device: torch.device, tiny: bool, kept: str | None) -> dict[str, Any]:
    """The record that `out` holds of this device, torch and size, its rows of the commit `kept` (None: of any)."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    here = {"device": name, "torch": torch.__version__, "tiny": tiny}
    if out.exists():
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if all(found.get(key) == value for key, value in here.items()):
            rows = [r for r in found["rows"] if "refused" not in r and (kept is None or kept == r["commit"] != UNKNOWN)]
            if rows:
                return found | {"rows": rows}
    return here | {"peers": {}, "runs": [], "rows": []}


def begin(record: dict[str, Any], ceilings: Ceilings, commit: str) -> None:
    """Add this run."""
    date = time.strftime("%Y-%m-%d")
    run = {"date": date, "commit": commit, "command": command(), "ceilings": asdict(ceilings), "complete": False}
    record["runs"].append(run)


def add(record: dict[str, Any], rows: Rows, order: list[str]) -> None:
    """Rows of the last run, in place of older ones of the same case, in the order of the cases."""
    run = record["runs"][-1]
    stamp = {"run": len(record["runs"]) - 1, "commit": run["commit"], "date": run["date"]}
    names = {row["case"] for row in rows}
    record["rows"] = [r for r in record["rows"] if r["case"] not in names] + [row | stamp for row in rows]
    place = {name: i for i, name in enumerate(order)}
    record["rows"].sort(key=lambda row: place.get(row["case"], len(place)))


def write(out: Path, record: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
