"""Training in bf16 against float32: S4 with PGD-AT on sequential CIFAR-10 for a few epochs each, measured in float32.

    python -m benchmarks.gpu.precision [--epochs 5] [--device cuda] [--out benchmarks/results/precision.json]

Both runs have the same seed, batches, augmentation and schedule (the cosine ends with the last epoch), so that they
differ by the precision of the training step alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.about import RESULTS, about, accelerator
from resolvent.experiments import Cell, run_cell
from resolvent.experiments.recipe import cells_of


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=RESULTS / "precision.json")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--device", default="cuda")
    options.add_argument("--only", default="pixels,none", help="which of the four readings of the paper")
    options.add_argument("--rows", nargs="*", default=["bf16", "float32"], help="others stay as the output holds them")
    options.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    asked = options.parse_args()
    report = _about(asked)
    if asked.out.exists():
        report["rows"] = json.loads(asked.out.read_text(encoding="utf-8"))["rows"]
    for precision in asked.rows:
        report["rows"][precision] = _trained(precision, asked)
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(precision, report["rows"][precision], flush=True)
    if {"bf16", "float32"} <= set(report["rows"]):
        low, high = (report["rows"][name] for name in ("bf16", "float32"))
        report["points_apart"] = {name: round(low[name] - high[name], 2) for name in ("clean", "PGD-10")}
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print("points apart", report["points_apart"])


def _about(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        **about(accelerator(asked.device), asked.commit),
        "cell": f"qi2024-versions, {asked.only}",
        "epochs": asked.epochs,
        "rows": {},
    }


def _trained(precision: str, asked: argparse.Namespace) -> dict[str, Any]:
    (cell,) = cells_of("qi2024-versions", "full", asked.only)
    assert isinstance(cell, Cell)
    budget = replace(cell.budget, epochs=asked.epochs, evaluate_every=asked.epochs, precision=precision)  # type: ignore[arg-type]
    cell = replace(cell, budget=budget, attacks=(), attribution=False)
    with tempfile.TemporaryDirectory() as folder:
        record = run_cell(cell, folder, device=asked.device, tell=lambda line: None)
    last = record["training"]["summary"]["last"]
    return {
        "clean": round(100 * last["test_clean"], 2),
        "PGD-10": round(100 * last["test_robust"], 2),
        "train_loss": [round(row["train_loss"], 4) for row in record["training"]["rows"]],
        "epoch_s": record["times"]["rows"],
    }


if __name__ == "__main__":
    main()
