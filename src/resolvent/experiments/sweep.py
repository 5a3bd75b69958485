"""Many cells by any number of workers sharing a folder: each claims a cell, runs it, and continues with the next.

A worker is any process that calls `sweep` on the same cells and the same folder. A cell whose worker died is resumed
by another. Results do not depend on the worker. Object stores are not shared this way: there one call distributes
the cells (experiments/cluster).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resolvent.experiments.how import How
from resolvent.experiments.store.folder import Tell
from resolvent.experiments.store.lock import Taken
from resolvent.experiments.store.store import Store, open_store
from resolvent.experiments.study import Job, Study, run_study
from resolvent.experiments.training_run import run_cell
from resolvent.experiments.workers import begin_apart
from resolvent.training import Paused
from resolvent.usage.numbers import list_some

WAIT = 2.0  # seconds between checks of cells held by others
SHOWN = 8  # most places listed
Ended = Callable[[str], None]


def sweep(
    cells: Sequence[Job],
    root: str | Path | Store,
    *,
    device: str = "cpu",
    tell: Tell = print,
    wait: bool = True,
    how: How | None = None,
    ended: Ended | None = None,
) -> list[dict[str, Any]]:
    """Run every free cell; with `wait`, stay until those of other workers are done too (or their owners dead).

    Returns the records of all complete cells, in the order of the cells. A cell whose data are missing on this machine
    does not stop the others; its error is raised at the end.

    how     replaces `device`; when its time is up `Paused` is raised, with what remains
    ended   called with the place of every cell completed by this call
    """
    way = how or How(device)
    store = open_store(root) if isinstance(root, str | Path) else root
    places = {cell.place: cell for cell in cells}
    numbers = {place: f"[{i}/{len(places)}]" for i, place in enumerate(places, 1)}
    open_cells, taken, lacking = dict(begin_apart([*places.items()])), set[str](), list[FileNotFoundError]()
    while open_cells:
        before = len(open_cells)
        for place, cell in list(open_cells.items()):
            try:
                done = store.complete(place)
                if not done and way.late():
                    raise Paused("")
                if place not in taken and not done:
                    tell(f"{numbers[place]} {cell.address}, seed {cell.seed}")
                with store.working(place, tell) as path:
                    _run(cell, path, way, tell)
                if ended is not None and not done:
                    ended(place)
            except Paused as stop:
                stopped = f"{cell.address}, seed {cell.seed}: {stop}. " if str(stop) else ""
                raise Paused(stopped + tell_left(list(places), store)) from None
            except Taken as other:
                if place not in taken:  # reported once
                    tell(f"{cell.address}: {other}" if not wait else f"{cell.address}: somebody else is at it")
                taken.add(place)
                continue
            except FileNotFoundError as absent:
                if len(places) == 1:
                    raise
                tell(f"{cell.address}: left out, {str(absent).splitlines()[0]}")
                lacking.append(absent)
            open_cells.pop(place)
        if not wait:
            break
        if len(open_cells) == before:
            time.sleep(WAIT)
    if lacking:
        left = f"{len(lacking)} of {len(places)} cells were left out, all others are done."
        raise FileNotFoundError(f"{left} {lacking[0]}")
    found = [store.record(place) for place in places]
    return [record for record in found if record is not None]


def tell_left(places: Sequence[str], store: Store) -> str:
    """What remains when the time of a call is up."""
    left = [place for place in places if not store.complete(place)]
    return f"{len(places) - len(left)} of {len(places)} runs are done; left: {list_some(left, SHOWN)}"


def _run(job: Job, path: Path, how: How, tell: Tell) -> None:
    if isinstance(job, Study):
        run_study(job, path, tell=tell)
    else:
        run_cell(job, path, tell=tell, how=how)
