"""Folders of runs in, their records out; what cannot be read is told, not hidden."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]
LARGEST = 64 * 2**20  # bytes: no record of ours is near it


@dataclass(frozen=True)
class Runs:
    """Records of complete runs, by folder; `problems` are lines about those that are not."""

    records: dict[Path, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def studies(self) -> list[tuple[str, Record]]:
        """Analyses without training: recipe and tags, and the record."""
        held = [(r["cell"], r) for r in self.records.values() if "study" in r]
        return [(" ".join([cell["recipe"], *cell["tags"]]), record) for cell, record in held]

    def recipes(self) -> dict[str, dict[str, list[Record]]]:
        """recipe -> address -> its seeds; studies apart."""
        found: dict[str, dict[str, list[Record]]] = {}
        for record in self.records.values():
            if "study" in record:
                continue
            cell = record["cell"]
            found.setdefault(cell["recipe"], {}).setdefault(",".join(cell["tags"]), []).append(record)
        return found


def read_runs(folders: list[Path], shown: dict[Path, str] | None = None) -> Runs:
    """Every run below the folders; those in `shown` are copies, told by the address that they came from."""
    runs = Runs()
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"report: there is no folder {str(folder)!r}; give one that `resolvent run` wrote.")
        for path in sorted(folder.rglob("cell.json")):
            if "damaged" not in path.parts:
                _read(path.parent, runs)
    for copy, origin in (shown or {}).items():
        runs.problems[:] = [line.replace(str(copy), origin.rstrip("/")) for line in runs.problems]
    if not runs.records and not runs.problems:
        told = ", ".join((shown or {}).get(folder, str(folder)) for folder in folders)
        raise ValueError(f"report: no run in {told}; `resolvent run quickstart` makes some.")
    return runs


def _read(folder: Path, runs: Runs) -> None:
    path = folder / "record.json"
    if not path.is_file():
        runs.problems.append(f"{folder}: not complete; the command that started it goes on with it")
        return
    if path.stat().st_size > LARGEST:
        runs.problems.append(f"{path}: {path.stat().st_size:,} bytes are no record of ours; left out")
        return
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        check(record)
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:  # a bad line of JSON is a ValueError too
        runs.problems.append(f"{path}: cannot be read ({wrong}); remove it, and the same command makes it again")
        return
    runs.records[folder] = record


def check(record: Record) -> None:
    """What every page relies on."""
    cell = record["cell"]
    if not isinstance(cell["recipe"], str) or not all(isinstance(tag, str) for tag in cell["tags"]):
        raise ValueError("its cell has no recipe or tags")
    if "study" in record:
        record["study"]["text"], record["study"]["table"]["rows"], record["study"]["charts"]
    elif "failed" not in record:
        record["training"]["summary"]["best"]["epoch"]
