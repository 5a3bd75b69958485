"""Several worker processes on this machine for one list of cells: each takes free cells.

Small models do not profit from a second thread, but from a second process. The workers are ordinary calls of the
command line on the same folder; this process only starts, monitors and stops them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TypeVar

from resolvent.experiments.store.folder import RunError, Tell
from resolvent.experiments.store.store import Store

Cell = TypeVar("Cell")
LOOK = 0.5  # seconds between checks of the workers, or of the parent by a worker
GRACE = 10.0  # seconds for workers to stop
OUT_OF_TIME = 124  # exit status when --budget is exhausted, as that of timeout(1)
PARENT = "RESOLVENT_PARENT"  # set for a worker: its parent's process id
PART = "RESOLVENT_PART"  # set for a worker: 1/3 starts at the second third of the cells


def work_together(
    command: Sequence[str], store: Store, places: Sequence[str], workers: int, tell: Tell, tick: Callable[[int], None]
) -> None:
    """Run `command` (arguments of `python -m resolvent`) in `workers` processes until every place has its record.

    tick  is called with the number of complete cells, about twice a second
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    environment[PARENT] = str(os.getpid())
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile("w+") as errors:
        try:
            for number in range(workers):
                processes.append(_start(command, environment | {PART: f"{number}/{workers}"}, errors))
            _follow(processes, store, places, tell, tick)
        finally:
            _end(processes)
        errors.seek(0)
        _answer(processes, errors.read())


def _start(command: Sequence[str], environment: dict[str, str], errors: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "resolvent", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,  # terminal signals arrive here only, and are forwarded to every worker once
    )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask every worker and its children to stop; wait for all of them, and kill those that do not respond."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    last = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is not None:
        return
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)  # each worker has its own session
        else:
            process.terminate()
    except ProcessLookupError:
        return


def begin_apart(cells: Sequence[Cell]) -> list[Cell]:
    """All cells in this worker's order, starting at its own part.

    Neighbouring cells in a recipe are alike: workers starting with two of them would compile the same kernels at the
    same time. Starting at different parts, one finds in the cache what another has compiled.
    """
    number, _, workers = os.environ.get(PART, "0/1").partition("/")
    first = len(cells) * int(number) // int(workers)
    return [*cells[first:], *cells[:first]]


def stop_with_parent() -> None:
    """Stop a worker whose parent was killed."""
    parent = os.environ.get(PARENT)
    if parent is not None and hasattr(os, "getppid"):
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


def _follow(
    processes: Sequence[subprocess.Popen[bytes]],
    store: Store,
    places: Sequence[str],
    tell: Tell,
    tick: Callable[[int], None],
) -> None:
    done = {place for place in places if store.complete(place)}
    while any(process.poll() is None for process in processes):
        for place in places:
            if place not in done and store.complete(place):
                done.add(place)
                tell(f"[{len(done)}/{len(places)}] {', '.join(place.split('/')[-2:])}")
        tick(len(done))
        time.sleep(LOOK)
    tick(sum(store.complete(place) for place in places))


def _answer(processes: Sequence[subprocess.Popen[bytes]], errors: str) -> None:
    """Raise for a worker that was called wrongly or died; one with a diverged run has done its work, as has one whose
    time is up."""
    bad = [process.returncode for process in processes if process.returncode not in (0, 1, OUT_OF_TIME)]
    if bad:
        lines = errors.strip().splitlines()
        raise RunError(f"run: a worker ended with status {bad[0]}: {lines[-1] if lines else 'it said nothing.'}")
