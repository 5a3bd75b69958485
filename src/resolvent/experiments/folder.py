"""The folder of a run, on top of what training and attacks keep there themselves.

    cell.json        what is run; another cell is refused, by the first field that differs
    config.json, metrics.jsonl, summary.json, checkpoint/      of training
    attack/NAME-best/                                          of each evaluation
    stage/NAME.json  the finished result of a stage, with its own checksum
    record.json      written last: everything that a report shows; the run is complete
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Protocol

from resolvent.attacks.store import first_difference
from resolvent.disk import replace
from resolvent.experiments.cell import Cell

CELL, RECORD, SUMS = "cell.json", "record.json", "sums.json"
LARGEST = 64 * 2**20  # bytes: no file of ours in JSON is near it


class RunError(ValueError):
    """A run cannot start or go on; the message says what to do."""


class Described(Protocol):
    """A cell or a study: what a folder is taken for."""

    def to_dict(self) -> dict[str, Any]: ...


class Folder:
    """Reads and writes the files of one cell."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"run: {str(self.path)!r} is a file; give a folder, which need not exist yet.")

    def admit(self, cell: Described) -> None:
        """Take the folder for this cell, or refuse when it holds another."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            raise RunError(f"run: cannot make the folder {str(self.path)!r} ({wrong.strerror}).") from wrong
        path = self.path / CELL
        if not path.is_file():
            self.write(CELL, cell.to_dict())
            return
        now = json.loads(json.dumps(cell.to_dict()))
        found = first_difference(read_json(path), now)
        if found:
            where, then, new = found
            raise RunError(
                f"run: {str(self.path)!r} holds a run of other settings: {where} was {then!r} there and is {new!r} "
                "now; choose another folder, or remove that one to start anew."
            )

    def cell(self) -> Cell:
        """What is run here."""
        path = self.path / CELL
        if not path.is_file():
            raise RunError(f"run: {str(self.path)!r} holds no run: there is no {CELL} in it.")
        return Cell.from_dict(read_json(path))

    def record(self) -> dict[str, Any] | None:
        """What a complete run found; None before that."""
        path = self.path / RECORD
        return read_json(path) if path.is_file() else None

    def stage(self, name: str) -> dict[str, Any] | None:
        """The finished result of a stage; a damaged file counts as unfinished, so it is done again."""
        path = self.path / "stage" / f"{name}.json"
        if not path.is_file():
            return None
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            result: dict[str, Any] = held["result"]
            return result if held["sha256"] == checksum(result) else None
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            return None

    def finish(self, name: str, result: dict[str, Any]) -> None:
        (self.path / "stage").mkdir(exist_ok=True)
        self.write(f"stage/{name}.json", {"sha256": checksum(result), "result": result})

    def write(self, name: str, value: Any) -> Path:
        path = self.path / name
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        replace(path, lambda part: part.write_text(text, encoding="utf-8"))
        return path

    # -- weights that later stages trust ---------------------------------------------------------------------------

    def seal(self) -> None:
        """Remember what the finished checkpoints hold, so that later damage is seen."""
        found = {p.relative_to(self.path).as_posix(): file_sum(p) for p in self._weights()}
        self.write(f"checkpoint/{SUMS}", found)

    def damaged(self) -> list[str]:
        """Finished checkpoints that no longer hold what was sealed."""
        path = self.path / "checkpoint" / SUMS
        if not path.is_file():
            return []
        held = read_json(path)
        for name in held:
            if not re.fullmatch(r"checkpoint/[\w-]+/model\.safetensors", name):
                raise RunError(f"run: {path} names {name!r}, which is no checkpoint of a run; remove it.")
        return [name for name, known in held.items() if file_sum(self.path / name) != known]

    def _weights(self) -> list[Path]:
        return sorted((self.path / "checkpoint").glob("*/model.safetensors"))


def read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LARGEST:
        raise RunError(f"run: {path} has {path.stat().st_size:,} bytes, which no file of a run has; remove it.")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise RunError(f"run: {path} is damaged ({wrong}); remove it, and the run goes on without it.") from wrong
    if not isinstance(held, dict):
        raise RunError(f"run: {path} should hold a JSON object, it holds {type(held).__name__}; remove it.")
    return held


def checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_sum(path: Path) -> str:
    if not path.is_file():
        return "absent"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
