"""The results of a finished run, small enough to commit: recipe, tags, seed, commit, command and its numbers.

    {"recipe": "smnist", "tags": ["s4d"], "seed": 0, "commit": "0b5c3a0", "command": "resolvent run smnist ...",
     "values": {"clean_last": 99.4}}

Evidence is read from such files and from the records of runs alike.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent.disk import write_text
from resolvent.report.runs import Record, Runs, read_runs

PLACES = ("best", "last", "best_by_test")
Options = Callable[[Record], str]  # of the command that made a record, each after a space
LARGEST = 64 * 2**20  # bytes: far above any record of ours
PARTS = ("generalisation", "fourier", "certificate")  # of a record, whose numbers keep their own names


@dataclass(frozen=True)
class Evidence:
    """Numbers of one run under their names; accuracies in per cent."""

    recipe: str
    tags: tuple[str, ...]
    seed: int
    values: dict[str, float]
    commit: str = ""
    command: str = ""
    device: str = ""
    source: str = ""  # the source file


def read_evidence(folders: list[Path]) -> list[Evidence]:
    """Everything below the folders: evidence files, and complete runs."""
    found: list[Evidence] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {str(folder)!r}; give one with records of `resolvent run`.")
        own = {path.parent for path in folder.rglob("cell.json")}
        for path in sorted(folder.rglob("*.json")):
            if not own.intersection(path.parents):
                found += _load(path)
        if own:
            found += evidence_of(read_runs([folder]))
    if not found:
        message = ", ".join(map(str, folders))
        raise ValueError(f"no record of a finished run in {message}; `resolvent run ptd-conditioning` makes one.")
    return found


def evidence_of(runs: Runs, commit: str = "", options: Options = lambda record: "") -> list[Evidence]:
    """The evidence of complete runs, including diverged ones. `options` are added to a run's command."""
    return [_condense(record, folder, commit, options(record)) for folder, record in runs.records.items()]


def save_evidence(runs: Runs, folder: Path, commit: str, options: Options = lambda record: "") -> list[Path]:
    """One file per run, named after its recipe, tags and seed."""
    written = []
    for held in evidence_of(runs, commit, options):
        path = folder / f"{'-'.join([held.recipe, *held.tags])}-seed{held.seed}.json"
        row = {"recipe": held.recipe, "tags": list(held.tags), "seed": held.seed, "commit": held.commit,
                "command": held.command, "device": held.device, "values": held.values}  # fmt: skip
        write_text(path, json.dumps(row, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
        written.append(path)
    return written


def _load(path: Path) -> list[Evidence]:
    """The runs of an evidence file: one, or several under "evidence" sharing the rest; none for other files."""
    if path.stat().st_size > LARGEST:
        return []
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(held, dict):
            return []
        several = held.get("evidence")
        parts = [held | each for each in several] if isinstance(several, list) else [held]
        return [_parse(part, path.name) for part in parts if {"recipe", "tags", "seed", "values"} <= set(part)]
    except (ValueError, TypeError, AttributeError, RecursionError) as wrong:
        raise ValueError(f"{path} is no evidence file: {wrong}; repair or remove it.") from wrong


def _parse(held: dict[str, Any], source: str) -> Evidence:
    values = {str(name): float(value) for name, value in held["values"].items()}
    if not all(map(math.isfinite, values.values())):
        raise ValueError("a value is not finite")
    record = {name: str(held.get(name, "")) for name in ("commit", "command", "device")}
    return Evidence(
        str(held["recipe"]), tuple(map(str, held["tags"])), int(held["seed"]), values, **record, source=source
    )


def _condense(record: Record, folder: Path, commit: str, options: str = "") -> Evidence:
    cell = record["cell"]
    only = f" --only {','.join(cell['tags'])}" if cell["tags"] else ""
    command = f"resolvent run {cell['recipe']}{options}{only} --seeds {cell['seed']}"
    device = str(record.get("versions", {}).get("device", ""))
    return Evidence(cell["recipe"], tuple(cell["tags"]), int(cell["seed"]), _values(record), commit, command, device,
                    str(folder))  # fmt: skip


def _values(record: Record) -> dict[str, float]:
    if "failed" in record:
        return {"diverged": 1.0}
    if "study" in record:
        return _flatten_table(record["study"]["table"])
    epochs = record["cell"].get("budget", {}).get("epochs")
    found: dict[str, float] = {"diverged": 0.0} | ({} if epochs is None else {"epochs": float(epochs)})
    for place in PLACES:
        found |= {f"{kind}_{place}": round(value, 6) for kind, value in _scores(record, place).items()}
    for part in PARTS:
        found |= _numbers(record.get(part), part)
    return found | _tones(record.get("fourier"))


def _scores(record: Record, place: str) -> dict[str, float]:
    """The scores of that checkpoint: accuracies in per cent, or minus squared errors.

    AutoAttack is the cell's first evaluation, at its training eps.
    """
    scale = 1.0 if record["task"].get("classes", 0) is None else 100.0
    row = record["training"]["summary"].get(place, {})
    under = [attack["accuracy"] for attack in record.get("attacks", {}).values() if attack["checkpoint"] == place]
    scores = {"clean": row.get("test_clean"), "pgd10": row.get("test_robust"), "autoattack": (under or [None])[0]}
    return {kind: scale * score for kind, score in scores.items() if score is not None}


def _tones(held: dict[str, Any] | None) -> dict[str, float]:
    """Scores under tones as `fourier.0.1 at 325.4`: an accuracy in per cent, or minus a squared error."""
    if held is None:
        return {}
    scale = 1.0 if held.get("regression") else 100.0
    return {f"fourier.{p['amplitude']:g} at {p['frequency']:.4g}": scale * p["score"] for p in held.get("points", ())}


def _flatten_table(table: dict[str, Any]) -> dict[str, float]:
    """Numbers of a study's table under `row.column`.

    A row is named by its leading words and integers; if several share a name, by the next number, too.
    """
    called = [_count_names(row) for row in table["rows"]]
    names = Counter(", ".join(map(str, row[:n])) for row, n in zip(table["rows"], called, strict=True))
    found: dict[str, float] = {}
    for row, named in zip(table["rows"], called, strict=True):
        name = ", ".join(map(str, row[:named]))
        full = name if names[name] == 1 or named == len(row) else f"{name}, {row[named]}"
        for column, value in zip(table["columns"][named:], row[named:], strict=True):
            number = _number(value)
            if number is not None:
                found[f"{full}.{column}"] = number
    return found


def _count_names(row: list[Any]) -> int:
    """The number of entries that name a row."""
    count = 1
    while count < len(row) and row[count] is not None and (isinstance(row[count], int) or _number(row[count]) is None):
        count += 1
    return count


def _numbers(held: Any, name: str) -> dict[str, float]:
    """The numbers in nested dictionaries; lists are curves, and are omitted."""
    if isinstance(held, dict):  # `parts` are intermediate results of a certificate
        return {
            k: v for key, value in held.items() if key != "parts" for k, v in _numbers(value, f"{name}.{key}").items()
        }
    number = None if isinstance(held, list) else _number(held)
    return {} if number is None else {name: number}


def _number(value: Any) -> float | None:
    """A finite number, also if written as text (such as 10^47)."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
