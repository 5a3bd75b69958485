"""The folder of a run, in addition to the files of training and attacks.

    cell.json        what is run; another cell is refused, naming the first different field
    config.json, metrics.jsonl, summary.json, checkpoint/      of training
    attack/NAME-best/                                          of each evaluation
    stage/NAME.json  the finished result of a stage
    record.json      written last: the data of a report; the run is complete

Every file has a digest. Damaged files are remade from the rest, or refused by name.
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
    """A run cannot start or resume; the message says what to do.

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
        elif then != now:  # left by a call that was refused, or stopped before it began
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
        """The settings in cell.json; fields unknown to older versions have their defaults."""
        return upgrade(read_json(self.path / CELL))

    def started(self) -> bool:
        """Whether there is anything besides the settings."""
        return self.path.is_dir() and any(not p.name.startswith((CELL, ".lock")) for p in self.path.iterdir())

    def empty(self) -> None:
        """Remove all but the lock; the settings last, so that a half-emptied folder is still recognised as a run."""
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == CELL):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not path.name.startswith(".lock"):
                path.unlink()

    def _readmit(self, now: dict[str, Any], wrong: Damaged) -> None:
        """Rewrite a damaged cell.json if a sound record tells what was run, or else each file tells what it belongs
        to; stages of older versions do not, so they are redone."""
        record = self._legible(RECORD)
        if record is not None:
            self._require_same(upgrade(record.get("cell") or {}), now)
        elif any(not is_sealed(self._legible(f"{STAGE}/{p.name}", raw=True) or {}) for p in self._stages()):
            self.set_aside((STAGE,))
        warnings.warn(f"run: {wrong}; it is written again.", stacklevel=4)
        self.write(CELL, now)

    def _legible(self, name: str, raw: bool = False) -> dict[str, Any] | None:
        """The content of a file, or None if it is absent or not valid."""
        try:
            return (read_sealed if raw else read_json)(self.path / name)
        except (OSError, Damaged):
            return None

    def cell(self) -> Cell:
        """The cell of this folder; if cell.json is damaged, from the record."""
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
        """The record of a complete run; None before that. A record of another run counts as damaged."""
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
            found = first_difference(upgrade(cell), upgrade(other) if isinstance(other, dict) else other)
        if found:
            raise RunError(f"run: {path} is the record of another run ({found[0] or 'its cell'} differs); remove it.")
        return held

    def sound_record(self, tell: Tell) -> dict[str, Any] | None:
        """The record of a complete run; a damaged one is reported and set aside, to be remade."""
        try:
            return self.record()
        except RunError as wrong:
            tell(f"{wrong} It is set aside and rebuilt.")
            self.set_aside((RECORD,))
            return None

    def stage(self, name: str) -> dict[str, Any] | None:
        """The finished result of a stage; a damaged file counts as unfinished, so it is redone."""
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
        """Remove the points of finished attacks; their record.json still covers every sample."""
        for piece in (self.path / "attack").rglob("*.safetensors"):
            piece.unlink(missing_ok=True)

    def _of(self, stage: str) -> str:
        """The part of a stage's digest besides its result."""
        return f"{fingerprint(self._legible(CELL))} {stage}"

    def _stages(self) -> list[Path]:
        return sorted((self.path / STAGE).glob("*.json"))

    def write(self, name: str, value: dict[str, Any]) -> Path:
        return write_json(self.path / name, value, finite=True)

    def set_aside(self, names: Sequence[str]) -> None:
        """Rename damaged files instead of deleting them."""
        aside = self.path / ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(exist_ok=True)
        for name in names:
            if (self.path / name).exists():
                shutil.move(self.path / name, aside / name)

    # -- weights for later stages ----- ---------------------------------------------------------------------------

    def seal(self) -> None:
        """Store the digests of finished checkpoints, so that later damage is detected."""
        found = {p.relative_to(self.path).as_posix(): file_sum(p) for p in self._weights()}
        self.write(f"checkpoint/{SUMS}", found)

    def damaged(self) -> list[str]:
        """Finished checkpoints that differ from their digests. Their copies of the settings are repaired."""
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
        """Repair preprocessing: the run and its checkpoints have equal copies, an intact one replaces damaged ones."""
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


def upgrade(held: dict[str, Any]) -> dict[str, Any]:
    """A cell of any version with this version's fields; unchanged if it has unknown settings."""
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
