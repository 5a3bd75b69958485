"""Records from folders of runs; unreadable ones are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, read_json

Record = dict[str, Any]
CORRUPTION = "corruptions.json"  # written by `resolvent corrupt` into a run's folder


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
    """Every run below the folders; those in `shown` are copies, named by their origin."""
    runs = Runs()
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"report: there is no folder {str(folder)!r}; give one that `resolvent run` wrote.")
        for path in sorted(folder.rglob("cell.json")):
            if "damaged" not in path.relative_to(folder).parts:
                _read(path.parent, runs)
    for copy, origin in (shown or {}).items():
        runs.problems[:] = [line.replace(str(copy), origin.rstrip("/")) for line in runs.problems]
    if not runs.records and not runs.problems:
        message = ", ".join((shown or {}).get(folder, str(folder)) for folder in folders)
        raise ValueError(f"report: no run in {message}; `resolvent run quickstart` makes some.")
    return runs


def _read(folder: Path, runs: Runs) -> None:
    path = folder / "record.json"
    if not path.is_file():
        runs.problems.append(f"{folder}: not complete; the command that started it resumes it")
        return
    try:
        record = read_json(path)
        check(record)
        _check_place(folder, record)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as wrong:
        why = f"{type(wrong).__name__} {wrong}" if isinstance(wrong, KeyError | AttributeError) else wrong
        runs.problems.append(f"{path}: cannot be read ({why}); left out: the command that made the run makes it again")
        return
    runs.records[folder] = record | _corruptions(folder, record, runs)


def _corruptions(folder: Path, record: Record, runs: Runs) -> Record:
    """The results of `resolvent corrupt` after the run; otherwise of the run's own stage."""
    path = folder / CORRUPTION
    if not path.is_file() or "failed" in record:
        return {}
    try:
        held = read_json(path)
        float(held["mean_error"]), float(held["clean"]), {n: list(map(float, row)) for n, row in held["errors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as wrong:
        runs.problems.append(f"{path}: cannot be read ({wrong}); left out: run `resolvent corrupt {folder}` again")
        return {}
    return {"corruptions": held}


def _check_place(folder: Path, record: Record) -> None:
    """Refuse a record that does not match the settings in its folder."""
    try:
        cell = read_json(folder / "cell.json")
    except (Damaged, OSError):
        return
    other = [name for name, value in cell.items() if name in record["cell"] and record["cell"][name] != value]
    if other:
        raise ValueError(f"it is the record of another run: {other[0]} is not that of cell.json")


def check(record: Record) -> None:
    """Check the fields that every page requires."""
    cell = record["cell"]
    if not isinstance(cell["recipe"], str) or not all(isinstance(tag, str) for tag in cell["tags"]):
        raise ValueError("its cell has no recipe or tags")
    if "study" in record:
        record["study"]["text"], record["study"]["table"]["rows"], record["study"]["charts"]
    elif "failed" not in record:
        record["training"]["summary"]["best"]["epoch"]


def without_odd(runs: Runs, show: Callable[[Runs], object], first: Exception) -> Runs:
    """Without the records that break a page even alone: they are left out by name, so that the others can be shown; if
    none does, the error `first` is raised."""
    kept, named = {}, list(runs.problems)
    for folder, record in runs.records.items():
        try:
            show(Runs({folder: record}))
        except Exception as wrong:  # of any kind: records may contain anything
            named.append(f"{folder / 'record.json'}: cannot be shown ({type(wrong).__name__} {wrong}); left out")
        else:
            kept[folder] = record
    if len(kept) == len(runs.records):
        raise first
    return Runs(kept, named)
