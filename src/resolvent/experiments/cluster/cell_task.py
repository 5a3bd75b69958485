"""What a node of the cluster does: one cell, from its settings to its record in the store."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import resolvent
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


@dataclass(frozen=True)
class Needs:
    """What a cell takes of a node: CPUs, as many threads, and GPUs, or a part of one that several cells share."""

    cpus: int = 1
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)}" + (f" and {self.gpus:g} GPU" if self.gpus else "")


@dataclass(frozen=True)
class Terms:
    """How all cells of a call are run, and where their results go: a folder that all nodes see, or a URL."""

    out: str
    needs: Needs = Needs()
    device: str = "cpu"
    points: bool = False
    until: float | None = None  # a time of the clock, for machines have no other in common
    version: str = resolvent.__version__


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


def run_order(order: Order) -> Outcome:
    """Run the cell, or go on from where the store has it. A retry after the loss of a node is the same call."""
    place, node, terms = order.job.place, socket.gethostname(), order.terms
    try:
        _require_fit(order, node)
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


def _require_fit(order: Order, node: str) -> None:
    """A node of another version would come to other numbers, one with a disk of its own would keep them to itself."""
    terms = order.terms
    if terms.version != resolvent.__version__:
        raise RunError(
            f"run: {node} has resolvent {resolvent.__version__} and the caller {terms.version}; install the same."
        )
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
