"""A run for a tracker: settings, one row of numbers per epoch, and the final results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, fingerprint, read_json, read_sealed

METRICS = "metrics.jsonl"
SPLITS = ("train", "validation", "test", "seen")  # a row names its numbers train_loss, validation_clean, ...
Row = dict[str, Any]


@dataclass(frozen=True)
class Tracked:
    """name       the run's path below the given folder
    settings   of the cell, or of `fit` for runs without a recipe
    rows       of metrics.jsonl, complete lines only
    found      numbers of the finished run: accuracies of its best and last epoch, and under each attack
    ended      when the last row was written, in seconds since 1970
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    found: dict[str, float] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def key(self) -> str:
        """A stable key of the run and its settings."""
        return fingerprint({"name": self.name, "settings": self.settings})[:16]


def read_tracked(folders: list[Path]) -> list[Tracked]:
    """Every run below the folders that has finished an epoch."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"log: there is no folder {str(folder)!r}; give one that `resolvent run` wrote.")
        for path in sorted(folder.rglob(METRICS)):
            if "damaged" not in path.relative_to(folder).parts:
                found.append(_read(path.parent, folder))
    return [run for run in found if run.rows]


def _read(folder: Path, below: Path) -> Tracked:
    name = folder.relative_to(below).as_posix() if folder != below else folder.resolve().name
    path = folder / METRICS
    rows = tuple(_rows(path))
    return Tracked(name, folder, _settings(folder), rows, _found(folder), path.stat().st_mtime)


def _rows(path: Path) -> Iterator[Row]:
    """A row per complete line: the last one may be incomplete."""
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            int(row["step"]), int(row["epoch"])
        except (ValueError, KeyError, TypeError) as wrong:
            message = f"log: line {number} of {path} is no row of a run; the command that made it mends it."
            raise ValueError(message) from wrong
        yield row


def _settings(folder: Path) -> dict[str, Any]:
    for name in ("cell.json", "config.json"):
        if (folder / name).is_file():
            try:
                return read_json(folder / name)
            except Damaged as wrong:
                raise ValueError(f"log: {wrong}; the command that made this run writes it again.") from wrong
    return {}


def _found(folder: Path) -> dict[str, float]:
    """The results in the record, or, before there is one, in the summary of training; {} while the run continues."""
    record, summary = folder / "record.json", folder / "summary.json"
    try:
        if record.is_file():
            held = read_json(record)
            return _numbers(held.get("training", {}).get("summary", {})) | _numbers(held.get("attacks", {}), "attacks/")
        if summary.is_file():
            return _numbers(read_sealed(summary))
    except (Damaged, ValueError, AttributeError) as wrong:
        raise ValueError(f"log: {wrong}; the command that made this run makes it again.") from wrong
    return {}


def _numbers(parts: dict[str, Any], before: str = "") -> dict[str, float]:
    """{"best": {"test_clean": 0.9}} as {"best/test_clean": 0.9}; only plain numbers."""
    found = {}
    for part, values in parts.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if is_number(value):
                found[f"{before}{part}/{name}"] = float(value)
    return found


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row under the names that trackers group by: train/loss, validation/clean, lr."""
    found = {}
    for name, value in row.items():
        split, _, what = name.partition("_")
        if name != "step" and is_number(value):
            found[f"{split}/{what}" if split in SPLITS and what else name] = float(value)
    return found


def times(run: Tracked) -> list[float]:
    """When each row was written, from the end time and the durations of epochs."""
    moments, now = [], run.ended
    for row in reversed(run.rows):
        moments.append(now)
        now -= float(row.get("seconds") or 0.0)
    return moments[::-1]


def place_below(out: Path, name: str) -> Path:
    """A path below the folder for a run's name, which may contain slashes."""
    return out / os.path.normpath(f"/{name}").lstrip("/")
