"""Digests of the user's files at the time of training: files that changed since are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from resolvent.disk import read_json, write_json
from resolvent.experiments.cell import Cell
from resolvent.experiments.store.folder import RunError, file_sum

SOURCE = "source.json"


def keep_source(cell: Cell, folder: Path) -> None:
    """Write the digests of the files that a run reads, except those already stored."""
    held, found = _read_kept(folder), _digests(cell)
    if not found.keys() <= held.keys():
        write_json(folder / SOURCE, {"files": found | held})


def require_source(cell: Cell, folder: Path) -> None:
    """Refuse files whose content has changed since the run began. A missing file is accepted: a finished run does not
    need it, and readers report it."""
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
    """The file, and that of the test split if separate."""
    named = (cell.task.file, cell.task.keywords().get("test") if cell.task.file is not None else None)
    return [Path(name) for name in named if isinstance(name, str)]


def _read_kept(folder: Path) -> dict[str, Any]:
    """Empty if damaged, or if the run is of an older version."""
    try:
        held = read_json(folder / SOURCE)["files"]
    except (ValueError, KeyError, OSError):
        return {}
    return held if isinstance(held, dict) else {}
