"""The folder of a run, on top of what training and attacks keep there themselves.

    cell.json        what is run; another cell is refused, by the first field that differs
    config.json, metrics.jsonl, summary.json, checkpoint/      of training
    attack/NAME-best/                                          of each evaluation
    stage/NAME.json  the finished result of a stage
    record.json      written last: everything that a report shows; the run is complete

Every file carries a digest. What is damaged is made again from the rest, or refused by name.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from resolvent.disk import (
    Damaged,
    fingerprint,
    first_difference,
    is_sealed,
    read_json,
    read_sealed,
    replace,
    write_json,
)
from resolvent.experiments.cell import Addressed, Cell
from resolvent.models.checkpoint import PREPROCESS, restore_settings, sound

CELL, RECORD, SUMS, STAGE, ASIDE = "cell.json", "record.json", "sums.json", "stage", "damaged"
Tell = Callable[[str], None]  # takes a line for the user


class RunError(ValueError):
    """A run cannot start or go on; the message says what to do.

    Examples:
        >>> try:
        ...     rv.run("ptd-conditionign")
        ... except rv.experiments.RunError as refused:
        ...     print(str(refused)[:73])
        run: there is no recipe 'ptd-conditionign'; did you mean 'ptd-conditionin
    """


class Folder:
    """Reads and writes the files of one cell.

    Examples:
        >>> rv.experiments.Folder("runs/none").record() is None
        True
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"run: {str(self.path)!r} is a file; give a folder, which need not exist yet.")

    def admit(self, cell: Addressed) -> None:
        """Take the folder for this cell, or refuse when it holds another."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            raise RunError(f"run: cannot make the folder {str(self.path)!r} ({wrong.strerror}).") from wrong
        path = self.path / CELL
        if not path.is_file():
            self.write(CELL, cell.to_dict())
            return
        now = settings_of(cell)
        try:
            then = self.described()
        except Damaged as wrong:
            self._readmit(now, wrong)
            return
        if self.started():
            self._require_same(then, now)
        elif then != now:  # of a call that was refused, or stopped before it began
            self.write(CELL, now)

    def _require_same(self, then: Any, now: dict[str, Any]) -> None:
        found = first_difference(then, now)
        if found:
            where, old, new = found
            raise RunError(
                f"run: {str(self.path)!r} holds a run of other settings: {where} was {old!r} there and is {new!r} "
                "now; choose another folder (--name on the command line), or let --overwrite take this one."
            )

    def described(self) -> dict[str, Any]:
        """The settings in cell.json; what an older version did not know yet is at its default."""
        return as_now(read_json(self.path / CELL))

    def started(self) -> bool:
        """Whether there is anything besides the settings."""
        return self.path.is_dir() and any(not p.name.startswith((CELL, ".lock")) for p in self.path.iterdir())

    def empty(self) -> None:
        """Remove all but the lock; the settings last, so that a folder half emptied is still known for a run."""
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == CELL):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not path.name.startswith(".lock"):
                path.unlink()

    def _readmit(self, now: dict[str, Any], wrong: Damaged) -> None:
        """A damaged cell.json is written again: a sound record tells what was run, and without one every other file
        tells what it is of; stages of older versions do not, so they are done again."""
        record = self._legible(RECORD)
        if record is not None:
            self._require_same(as_now(record.get("cell") or {}), now)
        elif any(not is_sealed(self._legible(f"{STAGE}/{p.name}", raw=True) or {}) for p in self._stages()):
            self.set_aside((STAGE,))
        warnings.warn(f"run: {wrong}; it is written again.", stacklevel=4)
        self.write(CELL, now)

    def _legible(self, name: str, raw: bool = False) -> dict[str, Any] | None:
        """What a file holds, or None where there is none or none that can be believed."""
        try:
            return (read_sealed if raw else read_json)(self.path / name)
        except (OSError, Damaged):
            return None

    def cell(self) -> Cell:
        """What is run here; where cell.json is damaged, what the record tells of it."""
        path = self.path / CELL
        if not path.is_file():
            raise RunError(f"run: {str(self.path)!r} holds no run: there is no {CELL} in it.")
        try:
            return Cell.from_dict(read_json(path))
        except Damaged as wrong:
            record = self._legible(RECORD)
            if record is None or not isinstance(record.get("cell"), dict):
                raise RunError(f"run: {wrong}; the command that made this run writes it again.") from wrong
            warnings.warn(f"run: {wrong}; the settings in {RECORD} are used.", stacklevel=2)
            return Cell.from_dict(record["cell"])

    def record(self) -> dict[str, Any] | None:
        """What a complete run found; None before that. One of another run is as wrong as a damaged one."""
        path = self.path / RECORD
        if not path.is_file():
            return None
        try:
            held = read_json(path)
        except Damaged as wrong:
            raise RunError(f"run: {wrong}; remove it, and the run continues without it.") from wrong
        cell = self._legible(CELL)
        other = held.get("cell")
        found = None
        if cell is not None:
            found = first_difference(as_now(cell), as_now(other) if isinstance(other, dict) else other)
        if found:
            raise RunError(f"run: {path} is the record of another run ({found[0] or 'its cell'} differs); remove it.")
        return held

    def sound_record(self, tell: Tell) -> dict[str, Any] | None:
        """The record of a complete run; a damaged one is told of and set aside, to be made again."""
        try:
            return self.record()
        except RunError as wrong:
            tell(f"{wrong} It is set aside and rebuilt.")
            self.set_aside((RECORD,))
            return None

    def stage(self, name: str) -> dict[str, Any] | None:
        """The finished result of a stage; a damaged file counts as unfinished, so it is done again."""
        path = self.path / STAGE / f"{name}.json"
        try:
            held = read_json(path, self._of(name))
            result: dict[str, Any] = held["result"]
            if "sha256" in held and held["sha256"] != fingerprint(result):  # of an older version
                return None
        except (OSError, Damaged, KeyError):
            return None
        return result if isinstance(result, dict) else None

    def finish(self, name: str, result: dict[str, Any]) -> None:
        write_json(self.path / STAGE / f"{name}.json", {"result": result}, self._of(name), finite=True)

    def drop_pieces(self) -> None:
        """Remove the points of attacks that are done; their record.json still tells of every sample."""
        for piece in (self.path / "attack").rglob("*.safetensors"):
            piece.unlink(missing_ok=True)

    def _of(self, stage: str) -> str:
        """What the digest of a stage covers besides its result."""
        return f"{fingerprint(self._legible(CELL))} {stage}"

    def _stages(self) -> list[Path]:
        return sorted((self.path / STAGE).glob("*.json"))

    def write(self, name: str, value: dict[str, Any]) -> Path:
        return write_json(self.path / name, value, finite=True)

    def set_aside(self, names: Sequence[str]) -> None:
        """Damaged work is kept under another name: it may hold what somebody needs."""
        aside = self.path / ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(exist_ok=True)
        for name in names:
            if (self.path / name).exists():
                shutil.move(self.path / name, aside / name)

    # -- weights that later stages trust ---------------------------------------------------------------------------

    def seal(self) -> None:
        """Remember what the finished checkpoints hold, so that later damage is seen."""
        found = {p.relative_to(self.path).as_posix(): file_sum(p) for p in self._weights()}
        self.write(f"checkpoint/{SUMS}", found)

    def damaged(self) -> list[str]:
        """Finished checkpoints that no longer hold what was sealed. Their copies of the settings are mended."""
        path = self.path / "checkpoint" / SUMS
        if not path.is_file():
            return []
        try:
            held = read_json(path)
        except Damaged as wrong:
            warnings.warn(f"run: {wrong}; it is made again, each checkpoint has its own digest.", stacklevel=2)
            found = [p.relative_to(self.path).as_posix() for p in self._weights() if not sound(p.parent)]
            if not found:
                self.seal()
            return found
        for name in held:
            if not re.fullmatch(r"checkpoint/[\w-]+/model\.safetensors", name):
                raise RunError(f"run: {path} names {name!r}, which is no checkpoint of a run; remove it.")
        found = [name for name, known in held.items() if file_sum(self.path / name) != known]
        for name in held if not found else ():
            restore_settings((self.path / name).parent)
        self._mend_preprocess()
        return found

    def _mend_preprocess(self) -> None:
        """The run and each of its checkpoints hold the same; a sound one takes the place of those that are not."""
        places = (self.path / PREPROCESS, *(weights.with_name(PREPROCESS) for weights in self._weights()))
        copies = [p for p in places if p.is_file()]
        good = [p for p in copies if self._legible(p.relative_to(self.path).as_posix()) is not None]
        for path in copies if good else ():
            if path not in good:
                replace(path, partial(shutil.copyfile, good[0]))

    def _weights(self) -> list[Path]:
        return sorted((self.path / "checkpoint").glob("*/model.safetensors"))


def settings_of(what: Addressed) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    held: dict[str, Any] = json.loads(json.dumps(what.to_dict()))
    return held


def as_now(held: dict[str, Any]) -> dict[str, Any]:
    """A cell that some version wrote, with the fields of this one; of another version's own settings as it is."""
    if held.get("class") != Cell.__name__:
        return held
    try:
        return settings_of(Cell.from_dict(held))
    except (ValueError, TypeError):
        return held


def file_sum(path: Path) -> str:
    if not path.is_file():
        return "absent"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
