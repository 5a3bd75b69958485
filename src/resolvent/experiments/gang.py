"""Several worker processes on this machine for one list of cells: each takes cells that nobody else runs.

Small models gain nothing from a second thread, but everything from a second process. The workers are ordinary calls of
the command line on the same folder; this process only starts them, follows what they finish, and stops them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO

from resolvent.experiments.folder import RunError
from resolvent.experiments.store import Store

Told = Callable[[str], None]
LOOK = 0.5  # seconds between looks at the workers


def work_together(
    command: Sequence[str], store: Store, places: Sequence[str], workers: int, told: Told, tick: Callable[[int], None]
) -> None:
    """Run `command` (arguments of `python -m resolvent`) in `workers` processes until every place has its record.

    tick  is called with the number of complete cells, about twice a second
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    with tempfile.TemporaryFile("w+") as errors:
        crew = [_start(command, environment, errors) for _ in range(workers)]
        try:
            _follow(crew, store, places, told, tick)
        finally:
            for process in crew:
                process.terminate()
            for process in crew:
                process.wait()
        errors.seek(0)
        _answer(crew, errors.read())


def _start(command: Sequence[str], environment: dict[str, str], errors: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "resolvent", *command], env=environment, stdout=subprocess.DEVNULL, stderr=errors
    )


def _follow(
    crew: Sequence[subprocess.Popen[bytes]],
    store: Store,
    places: Sequence[str],
    told: Told,
    tick: Callable[[int], None],
) -> None:
    done = {place for place in places if store.complete(place)}
    while any(process.poll() is None for process in crew):
        for place in places:
            if place not in done and store.complete(place):
                done.add(place)
                told(f"[{len(done)}/{len(places)}] {', '.join(place.split('/')[-2:])}")
        tick(len(done))
        time.sleep(LOOK)
    tick(sum(store.complete(place) for place in places))


def _answer(crew: Sequence[subprocess.Popen[bytes]], errors: str) -> None:
    """A worker that was called wrongly, or died, is told; one that left a diverged run behind has done its work."""
    bad = [process.returncode for process in crew if process.returncode not in (0, 1)]
    if bad:
        lines = errors.strip().splitlines()
        raise RunError(f"run: a worker ended with status {bad[0]}: {lines[-1] if lines else 'it said nothing.'}")
