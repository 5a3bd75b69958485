"""`resolvent run --on ray`: the cells as tasks of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from resolvent.commands.run.options import Run
from resolvent.experiments.cluster.cell_task import Needs, Terms
from resolvent.experiments.cluster.connection import connect, parse_address
from resolvent.experiments.cluster.dispatch import Heard, dispatch, require_room
from resolvent.experiments.store.objects import is_url
from resolvent.experiments.store.store import Store
from resolvent.experiments.study import Job


def spread_cells(request: Run, cells: Sequence[Job], store: Store, heard: Heard, left: float | None) -> None:
    """Run until every cell has its record; `left` are the remaining seconds."""
    on = request.on or ""
    out = request.out if is_url(request.out) else str(Path(request.out).resolve())
    until = None if left is None else time.time() + left
    terms = Terms(out, find_needs(request), request.device, request.keep_points, until)
    with connect(on) as ray:
        if parse_address(on) is None:
            require_room(ray, terms.needs)
        dispatch(ray, cells, store, terms, heard)


def find_needs(request: Run) -> Needs:
    """The requested resources; one GPU per cell by default with CUDA."""
    usual = 1.0 if request.device == "cuda" else 0.0
    return Needs(request.cell_cpus or 1, usual if request.cell_gpus is None else request.cell_gpus)
