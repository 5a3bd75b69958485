"""What the user's own files held when a run was trained on them: no call answers for a file that has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from resolvent.disk import read_json, write_json
from resolvent.experiments.cell import Cell
from resolvent.experiments.store.folder import RunError, file_sum

SOURCE = "source.json"


def keep_source(cell: Cell, folder: Path) -> None:
    """Write the digests of the files that a run has begun to read, those that it knows already aside."""
    held, found = _read_kept(folder), _digests(cell)
    if not found.keys() <= held.keys():
        write_json(folder / SOURCE, {"files": found | held})


def require_source(cell: Cell, folder: Path) -> None:
    """Refuse files of other content than the run began with. One that is gone is not another one: a finished run needs
    it no more, and what still reads it says so."""
    held = _read_kept(folder)
    for path, digest in _digests(cell).items() if held else ():
        if held.get(path, digest) != digest:
            raise RunError(
                f"run: {path} has changed since {str(folder)!r} was trained on it; bring the file back, give the new "
                "run a --name of its own, or let --overwrite train this one again."
            )


def _digests(cell: Cell) -> dict[str, str]:
    return {str(path): file_sum(path) for path in _files(cell) if path.is_file()}


def _files(cell: Cell) -> list[Path]:
    """The file, and that of the test split where it has one of its own."""
    named = (cell.task.file, cell.task.keywords().get("test") if cell.task.file is not None else None)
    return [Path(name) for name in named if isinstance(name, str)]


def _read_kept(folder: Path) -> dict[str, Any]:
    """Nothing where it is damaged, or the run is of an older version: what its files held is not known."""
    try:
        held = read_json(folder / SOURCE)["files"]
    except (ValueError, KeyError, OSError):
        return {}
    return held if isinstance(held, dict) else {}
