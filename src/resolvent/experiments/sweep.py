"""Many cells, by as many workers as share the folder: each claims a cell, runs it, and goes on to the next free one.

A worker is any process that calls `sweep` on the same cells and the same folder, on this machine or on others that see
the same disk or the same object store. A cell whose worker died is taken over from where it stopped. Which worker ran
what changes no number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.experiments.lock import Taken
from resolvent.experiments.run import run_cell
from resolvent.experiments.store import Store, open_store
from resolvent.experiments.study import Job, Study, run_study
from resolvent.experiments.work import Told

WAIT = 2.0  # seconds between looks at cells that others hold


def sweep(
    cells: Sequence[Job],
    root: str | Path | Store,
    *,
    device: str = "cpu",
    told: Told = print,
    wait: bool = True,
) -> list[dict[str, Any]]:
    """Run every cell that nobody else runs; with `wait`, stay until the others' are done too (or their owners dead).

    Returns the records of all complete cells, in the order of the cells. A cell whose data are not on this machine does
    not keep the others from running; the error about it comes at the end.
    """
    store = open_store(root) if isinstance(root, str | Path) else root
    places = {cell.place: cell for cell in cells}
    numbers = {place: f"[{i}/{len(places)}]" for i, place in enumerate(places, 1)}
    open_cells, taken, lacking = dict(places), set[str](), list[FileNotFoundError]()
    while open_cells:
        before = len(open_cells)
        for place, cell in list(open_cells.items()):
            try:
                if place not in taken and store.record(place) is None:
                    told(f"{numbers[place]} {cell.address}, seed {cell.seed}")
                with store.working(place, told) as path:
                    _run(cell, path, device, told)
            except Taken as other:
                if place not in taken:  # once; it is looked at again and again
                    told(f"{cell.address}: {other}" if not wait else f"{cell.address}: somebody else is at it")
                taken.add(place)
                continue
            except FileNotFoundError as absent:
                if len(places) == 1:
                    raise
                told(f"{cell.address}: left out, {str(absent).splitlines()[0]}")
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


def _run(job: Job, path: Path, device: str, told: Told) -> None:
    if isinstance(job, Study):
        run_study(job, path, told=told)
    else:
        run_cell(job, path, device=device, told=told)
