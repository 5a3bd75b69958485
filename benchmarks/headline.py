"""The headline run as one record: S4 with PGD-AT on sequential CIFAR-10, 180 epochs, then AutoAttack on 2,000 images.

    python -m resolvent run qi2024-table1 --only s4,cifar10,pgd-at --device cuda --precision bf16 --evaluate-every 12 \
        --attack-batch 2000 --no-report --out out/headline
    python -m benchmarks.headline out/headline --out benchmarks/results/headline.json --commit COMMIT

The first command does the work, and goes on where it was stopped; the second one gathers what it left, of a run that
is not done what was measured so far. Seconds of an attack are those between the files that AutoAttack stores.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

PLACE = "qi2024-table1/s4-cifar10-pgd-at/seed-5"
TAGS = ["s4", "cifar10", "pgd-at"]
COMMAND = (
    "python -m resolvent run qi2024-table1 --only s4,cifar10,pgd-at --device cuda --precision bf16 --evaluate-every {} "
    "--attack-batch {} --no-report --out out/headline"
)
CURVE = ("epoch", "train_loss", "train_score", "validation_clean", "validation_robust", "test_clean", "test_robust")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--commit", required=True, help="of the tree that ran")
    options.add_argument("--device", default="", help="of a run that is not done, which has no record to tell it")
    options.add_argument("--memory", default="", help="of the GPU, as seen from outside")
    asked = options.parse_args()
    folder = asked.runs / PLACE
    if not (folder / "record.json").exists():
        report = _partial(folder, asked)
        asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"epoch {report['epochs']} of {report['of']}: {report['measured'][-1:]}")
        return
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    report = _about(record, asked, folder) | {"results": _results(record), "paper": _paper(), "times": _times(record)}
    report["times"]["autoattack_s"] = {p.name: _seconds(p) for p in sorted((folder / "attack").iterdir())}
    report["curve"] = [{key: row[key] for key in CURVE if key in row} for row in record["training"]["rows"]]
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, row in report["results"].items():
        print(f"{name:13} epoch {row['epoch']:3}  clean {row['clean']}  PGD-10 {row['PGD-10']}  AutoAttack {row['AA']}")


def _about(record: dict[str, Any], asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cell, versions = record["cell"], record["versions"]
    budget, plan = cell["budget"], cell["attacks"][0]
    written = (folder / "record.json").stat().st_mtime
    return {
        "device": versions["device"].removeprefix("cuda: "),
        "date": time.strftime("%Y-%m-%d", time.gmtime(written)),
        "commit": asked.commit,
        "command": COMMAND.format(budget["evaluate_every"], plan["batch_size"]),
        "versions": versions,
        "memory": asked.memory,
        "precision": {"training": budget["precision"], "measurements and attacks": "float32"},
        "parameters": record["training"]["parameters"],
        "samples": record["task"]["samples"] | {"AutoAttack": plan["samples"]},
    }


def _partial(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """A run that was stopped: its epochs, and what was measured after some of them, in per cent."""
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    budget, plan = cell["budget"], cell["attacks"][0]
    measured = [row for row in rows if "test_clean" in row]
    names = {"clean": "test_clean", "PGD-10": "test_robust"}
    return {
        "device": asked.device,
        "date": time.strftime("%Y-%m-%d", time.gmtime((folder / "metrics.jsonl").stat().st_mtime)),
        "commit": asked.commit,
        "command": COMMAND.format(budget["evaluate_every"], plan["batch_size"]),
        "precision": {"training": budget["precision"], "measurements": "float32"},
        "memory": asked.memory,
        "epochs": rows[-1]["epoch"],
        "of": budget["epochs"],
        "measured": [{"epoch": r["epoch"]} | {name: _percent(r[key]) for name, key in names.items()} for r in measured],
        "paper": _paper(),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "curve": [{key: row[key] for key in CURVE if key in row} for row in rows],
    }


def _results(record: dict[str, Any]) -> dict[str, Any]:
    """Per cent: clean and PGD-10 on all 10,000 test images, AutoAttack standard on the first 2,000."""
    found = {}
    for name in ("best_by_test", "best", "last"):
        row = record["training"]["summary"][name]
        held = next(a for a in record["attacks"].values() if a["checkpoint"] == name)
        found[name] = {
            "epoch": row["epoch"],
            "clean": _percent(row["test_clean"]),
            "PGD-10": _percent(row["test_robust"]),
            "AA": _percent(held["accuracy"]),
            "AA standard error": _percent(held["standard_error"]),
            "AA, accuracy after each attack": {stage: _percent(value) for stage, value in held["table"].items()},
            "flags": held["flags"],
        }
    return found


def _paper() -> dict[str, Any]:
    targets = tomllib.loads(files("resolvent.report").joinpath("targets.toml").read_text(encoding="utf-8"))["target"]
    held = next(t for t in targets if t["recipe"] == "qi2024-table1" and t["tags"] == TAGS)
    names = {"clean": "clean", "pgd10": "PGD-10", "autoattack": "AA"}
    return {
        which: {label: held[f"{key}_{which}"] for key, label in names.items()}
        for which in ("best", "last")  # best: by PGD-10 on the test images
    }


def _times(record: dict[str, Any]) -> dict[str, Any]:
    rows = record["times"]["rows"]
    measured = [s for s, row in zip(rows, record["training"]["rows"], strict=True) if "test_clean" in row]
    plain = sorted(s for s, row in zip(rows, record["training"]["rows"], strict=True) if "test_clean" not in row)
    epoch = plain[len(plain) // 2]
    return {
        "training_s": round(sum(rows), 1),  # of all processes that the run took
        "epoch_s": epoch,
        "measurement_s": round(sorted(measured)[len(measured) // 2] - epoch, 3),
        "attacks_s": record["times"]["attacks"],
    }


def _seconds(folder: Path) -> dict[str, float]:
    """By attack, from the times at which its results were stored."""
    stored = sorted(folder.glob("0*.safetensors"))
    record: dict[str, float] = {}
    for before, after in pairwise(stored):
        name = after.stem[3:-5]
        record[name] = round(record.get(name, 0.0) + after.stat().st_mtime - before.stat().st_mtime, 1)
    return record | {"all": round(sum(record.values()), 1)}


def _percent(share: float) -> float:
    return round(100 * share, 2)


if __name__ == "__main__":
    main()
