"""Many cells, by as many workers as share the folder: each claims a cell, runs it, and goes on to the next free one.

A worker is any process that calls `sweep` on the same cells and the same folder, on this machine or on others that see
the same disk. A cell whose worker died is taken over from where it stopped. Which worker ran what changes no number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.experiments.folder import Folder
from resolvent.experiments.lock import Taken
from resolvent.experiments.run import run_cell
from resolvent.experiments.study import Job, Study, run_study
from resolvent.experiments.work import Told

WAIT = 2.0  # seconds between looks at cells that others hold


def sweep(
    cells: Sequence[Job], root: str | Path, *, device: str = "cpu", told: Told = print, wait: bool = True
) -> list[dict[str, Any]]:
    """Run every cell that nobody else runs; with `wait`, stay until the others' are done too (or their owners dead).

    Returns the records of all complete cells, in the order of the cells.
    """
    places = {Path(root) / cell.place: cell for cell in cells}
    open_cells = dict(places)
    while open_cells:
        before = len(open_cells)
        for number, (path, cell) in enumerate(list(open_cells.items())):
            try:
                told(f"[{len(places) - before + number + 1}/{len(places)}] {cell.address}, seed {cell.seed}")
                _run(cell, path, device, told)
            except Taken as other:
                told(f"{cell.address}: {other}" if not wait else f"{cell.address}: somebody else is at it")
                continue
            open_cells.pop(path)
        if not wait:
            break
        if len(open_cells) == before:
            time.sleep(WAIT)
    found = [Folder(path).record() for path in places]
    return [record for record in found if record is not None]


def _run(job: Job, path: Path, device: str, told: Told) -> None:
    if isinstance(job, Study):
        run_study(job, path, told=told)
    else:
        run_cell(job, path, device=device, told=told)
