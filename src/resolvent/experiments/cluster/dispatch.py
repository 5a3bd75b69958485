"""Cells as tasks of Ray: submitted, followed until the last is done, cancelled when the caller stops.

Ray moves a task whose node died to another one, which resumes from the store. Results do not depend on the node,
as long as all have the same packages and number of threads (`Needs.cpus`).
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import resolvent
from resolvent.experiments.cluster.cell_task import MARK, Needs, Order, Outcome, Terms, make_task
from resolvent.experiments.store.folder import RunError, Tell
from resolvent.experiments.store.objects import is_url
from resolvent.experiments.store.store import Store
from resolvent.experiments.study import Job
from resolvent.experiments.sweep import Ended, tell_left
from resolvent.training import Paused

RETRIES = 16  # most nodes that a cell may lose
LOOK = 1.0  # seconds between checks of the nodes
GRACE = 20.0  # seconds for cells to stop and store their progress
LATE = 60.0  # seconds after the budget for running cells to finish their step


@dataclass
class Heard:
    """The caller's callbacks."""

    tell: Tell = print
    tick: Callable[[int], None] = lambda done: None
    ended: Ended | None = None


def dispatch(ray: Any, jobs: Sequence[Job], store: Store, terms: Terms, heard: Heard) -> None:
    """Run every cell that has no record yet. Errors of single cells are raised when the others are done."""
    places = {job.place: job for job in jobs}
    left = [job for place, job in places.items() if not store.complete(place)]
    nodes = _Nodes(ray, heard.tell)
    nodes.tell(len(left), len(places), terms.needs)
    needs = {"num_cpus": terms.needs.cpus, "num_gpus": terms.needs.gpus}
    run = partial(ray.remote(make_task()).options, max_retries=RETRIES, **needs)
    with _leave_mark(terms.out) as mark:
        tasks = {
            run(name=job.place).remote(job.place, resolvent.__version__, pickle.dumps(Order(job, terms, mark))): job
            for job in left
        }
        try:
            with _cancel_after(ray, list(tasks)):
                outcomes = _follow(ray, tasks, len(places), terms, nodes, heard)
        except Paused:
            raise Paused(tell_left(list(places), store)) from None
    if any(outcome.paused for outcome in outcomes):
        raise Paused(tell_left(list(places), store))
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    if wrong:
        rest = ", all others are done" if len(wrong) < len(places) else ""
        raise RunError(
            f"run: {len(wrong)} of {len(places)} cells were left out{rest}; the first, {wrong[0].place}: "
            f"{wrong[0].wrong}"
        )


def _follow(ray: Any, tasks: dict[Any, Job], total: int, terms: Terms, nodes: _Nodes, heard: Heard) -> list[Outcome]:
    """Wait until the last cell is done or has stopped; `Paused` if some are still waiting for a node."""
    outcomes: list[Outcome] = []
    open_tasks, done = dict(tasks), total - len(tasks)
    while open_tasks:
        if terms.until is not None and time.time() > terms.until + (LATE if nodes.hold(terms.needs) else 0):
            raise Paused("")
        heard.tick(done)
        ready, _ = ray.wait(list(open_tasks), num_returns=1, timeout=LOOK)
        nodes.look()
        for task in ready:
            job = open_tasks.pop(task)
            outcome = _result(ray, task, job.place)
            outcomes.append(outcome)
            name = f"{job.address}, seed {job.seed}"
            if outcome.wrong:
                heard.tell(f"{name}: left out, {outcome.wrong.splitlines()[0]}")
            elif not outcome.paused:
                done += 1
                heard.tell(f"[{done}/{total}] {name}, on {outcome.node}")
                if heard.ended is not None:
                    heard.ended(job.place)
    heard.tick(done)
    return outcomes


def _result(ray: Any, task: Any, place: str) -> Outcome:
    """The result of a task. A cell that crashed its process on every node is reported like one with missing data; other
    errors raised by a cell are bugs, and are passed on unchanged."""
    try:
        return Outcome(*ray.get(task))
    except ray.exceptions.RayTaskError as wrong:
        if isinstance(wrong.cause, ImportError):  # a cell's own arrive in its outcome
            return Outcome(place, "", f"a node cannot import resolvent ({wrong.cause}); install it on every node.")
        raise
    except ray.exceptions.RayError as wrong:
        return Outcome(place, "", f"Ray gave it up ({type(wrong).__name__}: {_first_line(wrong)})")


def _first_line(wrong: Exception) -> str:
    return next(iter(str(wrong).strip().splitlines()), "")


@contextmanager
def _cancel_after(ray: Any, tasks: list[Any]) -> Iterator[None]:
    """If the block ends early, as by Ctrl-C, stop the cells; running ones store their progress."""
    try:
        yield
    except BaseException:
        for task in tasks:
            ray.cancel(task)
        _, late = ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
        for task in late:
            ray.cancel(task, force=True)
        raise


@contextmanager
def _leave_mark(out: str) -> Iterator[str]:
    """A temporary file by which nodes recognise the folder."""
    if is_url(out):
        yield ""
        return
    path = Path(out) / f"{MARK}{uuid.uuid4().hex}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


class _Nodes:
    """The machines of the cluster, as reported to the caller."""

    def __init__(self, ray: Any, tell: Tell) -> None:
        self.ray, self.tell_line = ray, tell
        self.alive = self._list_alive()

    def tell(self, left: int, total: int, needs: Needs) -> None:
        held = [node["Resources"] for node in self.alive.values()]
        cpus, gpus = (int(sum(each.get(name, 0) for each in held)) for name in ("CPU", "GPU"))
        many = ", ".join(_count(n, noun) for n, noun in ((len(held), "node"), (cpus, "CPU"), (gpus, "GPU")))
        self.tell_line(f"Ray has {many}; {left} of {total} cells are to be run, each with {needs}.")
        if not self.hold(needs):
            self.tell_line(f"No node has {needs} so far: the cells wait for one that does (Ctrl-C stops).")

    def hold(self, needs: Needs) -> bool:
        """Whether any of them could hold a cell when idle."""
        return any(_holds(node["Resources"], needs) for node in self.alive.values())

    def look(self) -> None:
        """Report nodes that joined or left."""
        now = self._list_alive()
        for name in self.alive.keys() - now.keys():
            self.tell_line(f"node {_describe(self.alive[name])} is lost: its cells resume elsewhere from the store")
        for name in now.keys() - self.alive.keys():
            self.tell_line(f"node {_describe(now[name])} has joined")
        self.alive = now

    def _list_alive(self) -> dict[str, dict[str, Any]]:
        return {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _describe(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def _holds(resources: dict[str, float], needs: Needs) -> bool:
    return resources.get("CPU", 0) >= needs.cpus and resources.get("GPU", 0) >= needs.gpus


def require_room(ray: Any, needs: Needs) -> None:
    """Refuse resources that a local Ray can never have; a cluster may grow."""
    if not _holds(ray.cluster_resources(), needs):
        raise RunError(f"run: this machine does not have {needs} for a cell; ask for less, or name a cluster to --on.")
