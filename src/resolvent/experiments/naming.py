"""Names for your own runs, unique per settings: differences are appended to the name.

train/mine-s4d-standard/seed-0             the first
train/mine-s4d-standard-lr=0.01/seed-0     the same with another learning rate
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, read_json
from resolvent.experiments.cell import TAG, Cell
from resolvent.experiments.store.folder import CELL, Folder, RunError, settings_of, upgrade
from resolvent.experiments.store.lock import Lock
from resolvent.experiments.store.store import FolderStore, ObjectStore, Store

COMPARED = ("task", "model", "goal", "budget")  # the rest of a cell follows from these
DERIVED = ("class", "warmup", "evaluate_every", "choose", "dt_min", "dt_max")  # or follows from other fields
SPOKEN = {"d_model": "width", "steps": "attack-steps", "weights": "class-weights"}
MOST, LONGEST = 3, 40  # most differences and characters spelled out
Held = dict[str, Any]


def name_apart(cells: Sequence[Cell], store: Store) -> list[Cell]:
    """The same cells under the first name not used by a run with other settings."""
    others = find_others(store, cells[0])
    if not others:
        return list(cells)
    mine = _settings(settings_of(cells[0]))
    for ending in (difference(next(iter(others.values())), mine), _digest(mine)):
        named = [replace(cell, tags=(*cell.tags, ending)) for cell in cells]
        if not find_others(store, named[0]):
            break
    return named


def find_others(store: Store, cell: Cell) -> dict[str, Held]:
    """Runs of the same name with other settings, for any seed, by path.

    A folder without any training yet is ignored.
    """
    mine, above = _settings(settings_of(cell)), cell.place.rpartition("/")[0]
    calls: dict[str, Callable[[], Held]] = {}
    if isinstance(store, FolderStore):
        for path in sorted((store.root / above).glob(f"seed-*/{CELL}")):
            folder = Folder(path.parent)
            if folder.started():
                calls[f"{above}/{path.parent.name}"] = folder.described
    else:
        for name in store.objects.names(above):
            if name.endswith(f"/{CELL}"):
                calls[name.rpartition("/")[0]] = partial(_fetch, store, name)
    held = {place: _settings(found) for place, call in calls.items() if (found := _try_read(call)) is not None}
    return {place: settings for place, settings in held.items() if settings != mine}


def _fetch(store: ObjectStore, name: str) -> Held:
    with tempfile.TemporaryDirectory(prefix="resolvent-") as scratch:
        store.objects.fetch(name, Path(scratch) / CELL)
        return upgrade(read_json(Path(scratch) / CELL))


def _try_read(call: Callable[[], Held]) -> Held | None:
    """None for a damaged file, which the run itself reports."""
    try:
        found = call()
    except (RunError, Damaged, ValueError, OSError):
        return None
    return found if isinstance(found, dict) else None


def _settings(held: Held) -> Held:
    return {name: value for name, value in held.items() if name not in ("tags", "seed")}


def difference(then: Held, now: Held) -> str:
    """`lr=0.01`, `epochs=40-width=32`; a short checksum if there are too many or unprintable differences."""
    found = [pair for part in COMPARED for pair in _leaves(_spread(then.get(part)), _spread(now.get(part)))]
    record = {SPOKEN.get(name, name): value for name, value in found if name not in DERIVED}
    ending = "-".join(_format_setting(name, value) for name, value in record.items())
    return ending if 0 < len(record) <= MOST and len(ending) <= LONGEST and TAG.fullmatch(ending) else _digest(now)


def _spread(part: Any) -> Any:
    """The options of a task by their names."""
    if isinstance(part, dict) and isinstance(part.get("options"), list):
        return part | {"options": {name: value for name, value in part["options"]}}  # noqa: C416  # lists, not pairs
    return part


def _leaves(a: Any, b: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*b, *a)):
            yield from _leaves(a.get(key), b.get(key), key)
    elif a != b:
        yield name, b


def _format_setting(name: str, value: Any) -> str:
    if isinstance(value, list | dict):
        return name
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def _digest(settings: Held) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def clear(store: Store, places: Sequence[str]) -> None:
    """Remove the runs at these places, and nothing else; one being written stays, with an error."""
    for place in places:
        if isinstance(store, FolderStore):
            folder = Folder(store.root / place)
            if not folder.path.exists():
                continue
            if folder.started() and not (folder.path / CELL).is_file():
                raise RunError(f"run: {str(folder.path)!r} holds no run, and --overwrite removes runs only.")
            with Lock(folder.path):
                folder.empty()
        else:
            store.remove(place)
