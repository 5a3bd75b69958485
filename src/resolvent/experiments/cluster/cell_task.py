"""The task of a cluster node: one cell, from its settings to its record in the store."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from resolvent.experiments.how import How
from resolvent.experiments.store.folder import RunError
from resolvent.experiments.store.lock import Taken
from resolvent.experiments.store.objects import is_url
from resolvent.experiments.study import Job
from resolvent.experiments.sweep import sweep
from resolvent.training import Paused
from resolvent.usage.device import require_device

MARK = ".shared-"  # and digits: a file by which a node recognises the folder
PATIENCE = 10.0  # seconds for a file to appear on a shared disk
Task = Callable[[str, str, bytes], tuple[str, str, str, bool]]  # place, version, order -> an Outcome's values


@dataclass(frozen=True)
class Needs:
    """A cell's resources: CPUs, the same number of threads, and GPUs, or a fraction of one shared by several cells."""

    cpus: int = 1
    gpus: float = 0.0

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)}{gpus}"


@dataclass(frozen=True)
class Terms:
    """How all cells of a call are run, and where results go: a folder visible to all nodes, or a URL."""

    out: str
    needs: Needs = Needs()
    device: str = "cpu"
    points: bool = False
    until: float | None = None  # wall-clock time, common to all machines


@dataclass(frozen=True)
class Order:
    """A cell for a node. `mark` names a file that the caller has put into the results folder."""

    job: Job
    terms: Terms
    mark: str = ""


@dataclass(frozen=True)
class Outcome:
    """`wrong` is an error the user can fix; `paused` means that the time was up."""

    place: str
    node: str
    wrong: str = ""
    paused: bool = False


def make_task() -> Task:
    """The function sent to nodes. Ray sends a nested function by value, so that the node imports the library inside the
    task, where it can be interrupted, and checks its version before it reads the order."""

    def run_packed(place: str, version: str, order: bytes) -> tuple[str, str, str, bool]:
        import pickle
        import socket
        from dataclasses import astuple

        import resolvent

        if resolvent.__version__ != version:
            here = socket.gethostname()
            wrong = f"{here} has resolvent {resolvent.__version__} and the caller {version}; install the same."
            return place, here, wrong, False
        from resolvent.experiments.cluster.cell_task import run_order

        return astuple(run_order(pickle.loads(order)))

    return run_packed


def run_order(order: Order) -> Outcome:
    """Run the cell, or resume it from the store. A retry after the loss of a node is the same call."""
    place, node, terms = order.job.place, socket.gethostname(), order.terms
    try:
        _require_folder(order, node)
        torch.set_num_threads(terms.needs.cpus)
        how = How(str(require_device(terms.device)), partial(_is_past, terms.until), terms.points)
        sweep([order.job], terms.out, tell=_silent, how=how)
    except Paused:
        return Outcome(place, node, paused=True)
    except (ValueError, TypeError, OSError, ImportError, Taken) as wrong:
        return Outcome(place, node, wrong=str(wrong).removeprefix("run: "))
    return Outcome(place, node)


def _is_past(until: float | None) -> bool:
    return until is not None and time.time() >= until


def _require_folder(order: Order, node: str) -> None:
    """Refuse a node that does not see the results folder: its results would stay on its own disk."""
    terms = order.terms
    last = time.monotonic() + PATIENCE
    while not is_url(terms.out) and not (Path(terms.out) / order.mark).is_file():
        if time.monotonic() > last:
            raise RunError(
                f"run: {node} does not see the folder {terms.out!r}; give --out a folder that all machines share, or a "
                "URL (s3://bucket/runs)."
            )
        time.sleep(0.2)


def _silent(line: str) -> None:
    return
