"""What a node of the cluster does: one cell, from its settings to its record in the store."""

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

MARK = ".shared-"  # and digits: a file by which a node knows the folder
PATIENCE = 10.0  # seconds in which a file must be seen on a disk that machines share
Task = Callable[[str, str, bytes], tuple[str, str, str, bool]]  # place, version, order -> an Outcome's values


@dataclass(frozen=True)
class Needs:
    """What a cell takes of a node: CPUs, as many threads, and GPUs, or a part of one that several cells share."""

    cpus: int = 1
    gpus: float = 0.0

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)}{gpus}"


@dataclass(frozen=True)
class Terms:
    """How all cells of a call are run, and where their results go: a folder that all nodes see, or a URL."""

    out: str
    needs: Needs = Needs()
    device: str = "cpu"
    points: bool = False
    until: float | None = None  # a time of the clock, for machines have no other in common


@dataclass(frozen=True)
class Order:
    """A cell for a node. `mark` names a file that whoever gives the order has put into the folder of results."""

    job: Job
    terms: Terms
    mark: str = ""


@dataclass(frozen=True)
class Outcome:
    """`wrong` is what the user can mend; `paused` says that the time was spent."""

    place: str
    node: str
    wrong: str = ""
    paused: bool = False


def make_task() -> Task:
    """What a node is sent. Ray sends a function inside of another by value, so that the node imports the library in the
    midst of the task, where it can be interrupted, and knows its version before it reads the order."""

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
    """Run the cell, or go on from where the store has it. A retry after the loss of a node is the same call."""
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
    """A node with a disk of its own would keep its results to itself."""
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
