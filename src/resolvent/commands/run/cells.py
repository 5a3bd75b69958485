"""`resolvent run`: find the cells, estimate their cost, run them, print where the results are."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from resolvent.commands.report import write_page
from resolvent.commands.run.arguments import arguments
from resolvent.commands.run.check import check_options
from resolvent.commands.run.forecast import foretell
from resolvent.commands.run.on_ray import spread_cells
from resolvent.commands.run.options import Run
from resolvent.commands.run.train import train_cell
from resolvent.commands.run.train_model import explain_narrow
from resolvent.commands.trouble import as_usage_errors
from resolvent.experiments.cell import Cell
from resolvent.experiments.cluster.dispatch import Heard
from resolvent.experiments.how import How, Late, after, never
from resolvent.experiments.interrupt import interrupted_once, others_missed
from resolvent.experiments.naming import clear, find_others, name_apart
from resolvent.experiments.overrides import override
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.store.folder import Tell
from resolvent.experiments.store.lock import Taken
from resolvent.experiments.store.objects import is_url
from resolvent.experiments.store.store import Store, open_store
from resolvent.experiments.study import Job
from resolvent.experiments.sweep import Ended, sweep
from resolvent.experiments.workers import OUT_OF_TIME, stop_with_parent, work_together
from resolvent.report.evidence import save_evidence
from resolvent.report.runs import Runs
from resolvent.report.tables.terminal import show
from resolvent.training import Paused
from resolvent.training.process_group import current_group, join_torchrun, speaks
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError

SMALL = ("quickstart",)  # recipes made for two cores


def run(request: Run, page: Path | None = None) -> int:
    """0 when every cell is done, 1 when one diverged. User errors are UsageErrors.

    `page` is the folder of the report; the recipe's own when left out.
    """
    console = Console(soft_wrap=True, highlight=False, quiet=not speaks())
    check_options(request)
    late = never if request.budget is None else after(request.budget)
    begun = time.monotonic()
    stop_with_parent()
    try:
        with as_usage_errors(request.out):
            device = find_device(request)
            wished = request.precision, request.evaluate_every, request.attack_batch
            cells = [override(cell, *wished) for cell in find(request, console.print)]
            if request.dry_run:
                foretell(cells, device, console)
                return 0
            if not is_url(request.out):
                require_writable(Path(request.out) / "report.html", "--out")
            with show_epochs(console):
                records = _records(request, cells, console, late, begun)
    except Paused as stop:
        console.print(f"the budget of {request.budget:g} s is spent. {stop}")
        console.print(f"everything so far is in {request.out}: the same command resumes from there.")
        return OUT_OF_TIME
    except KeyboardInterrupt:
        console.print(f"stopped; everything so far is in {request.out}: the same command resumes from there.")
        return 130
    _tell(records, console)
    recipe = f"{request.out.rstrip('/')}/{cells[0].recipe}"
    found = recipe if len(records) != 1 else f"{request.out.rstrip('/')}/{_place_of(records[0])}"
    console.print(f"results: {found if is_url(found) else Path(found).resolve()}")
    if request.report and speaks():
        console.print(f"The report is at {write_page((recipe,), str(page or recipe))}")
    return 1 if any("failed" in record for record in records) else 0


def _place_of(record: dict[str, Any]) -> str:
    """The path of a run, the RUN of other commands."""
    cell = record["cell"]
    return f"{cell['recipe']}/{'-'.join(cell['tags'])}/seed-{cell['seed']}" if cell["tags"] else cell["recipe"]


def _tell(records: Sequence[dict[str, Any]], console: Console) -> None:
    if any("study" not in record for record in records):
        show(records, console)
    for record in records:
        if "study" in record:
            console.print(record["study"]["text"])


def _records(request: Run, cells: Sequence[Any], console: Console, late: Late, begun: float) -> list[dict[str, Any]]:
    """Run what is missing, alone, with workers or on Ray, and read the records."""
    device = find_device(request)
    with interrupted_once(), others_missed(), join_torchrun(device):
        store = open_store(request.out)
        wished, cells = cells[0].place, _for_all(lambda: _place_cells(request, cells, store))
        if cells[0].place != wished:
            console.print(f"{wished} holds a run of other settings; this one is {cells[0].place}.")
        left = None if request.budget is None else max(1e-3, request.budget + begun - time.monotonic())
        ended = _writer(request, store, console)
        if request.on is not None:
            with progress(console, len(cells)) as tick:
                spread_cells(request, cells, store, Heard(console.print, tick, ended), left)
        elif request.workers > 1 and len(cells) > 1:
            _with_workers(replace(request, budget=left), store, [cell.place for cell in cells], console)
        how = How(device, late, request.keep_points)
        return sweep(cells, store, tell=console.print, how=how, ended=ended)


def find_device(request: Run) -> str:
    """The device, checked to be usable; with Ray the nodes compute, and this machine need not have it."""
    there = request.on is not None and request.device in ("cpu", "cuda")
    return request.device if there else str(require_device(request.device))


def _writer(request: Run, store: Store, console: Console) -> Ended | None:
    """A callback that writes a run's evidence file when it ends."""
    if request.evidence is None:
        return None
    folder, size = Path(request.evidence), " --size small" if request.size == "small" else ""
    given = "".join(f" --{name} {value}" for name, value in _list_overrides(request))

    def write(place: str) -> None:
        record = store.record(place)
        if record is not None and speaks():
            (path,) = save_evidence(Runs({Path(place): record}), folder, request.commit, lambda own: size + given)
            console.print(f"{path} is to be committed")

    return write


def _list_overrides(request: Run) -> list[tuple[str, str]]:
    named = {"device": request.device if request.device != "cpu" else None, "precision": request.precision}
    return [(name, value) for name, value in named.items() if value is not None]


def _for_all(work: Callable[[], list[Job]]) -> list[Job]:
    """The result or error of the first torchrun process, shared by all."""
    found: list[Job] | Exception = []
    if current_group().first:
        try:
            found = work()
        except (ValueError, OSError, Taken) as wrong:
            found = wrong
    found = current_group().gather(found)[0]
    if isinstance(found, Exception):
        raise found
    return found


def _place_cells(request: Run, cells: Sequence[Job], store: Store) -> list[Job]:
    """Name your own runs uniquely for their settings; recipes have their own names."""
    own = [cell for cell in cells if isinstance(cell, Cell)]
    if request.recipe == "train" and request.overwrite:
        clear(store, list(find_others(store, own[0])))
    elif request.recipe == "train" and request.name is None:
        return [*name_apart(own, store)]
    elif request.recipe == "train" and (others := find_others(store, own[0])):
        raise UsageError(
            f"--name {request.name} is the name of a run of other settings ({store.where(next(iter(others)))}); choose "
            "another, or let --overwrite take its place."
        )
    if request.overwrite:
        clear(store, [cell.place for cell in cells])
    return list(cells)


def _with_workers(request: Run, store: Store, places: list[str], console: Console) -> None:
    words = of_worker(replace(request, overwrite=False))
    with progress(console, len(places)) as tick:
        work_together(words, store, places, request.workers, console.print, tick)


def of_worker(request: Run) -> list[str]:
    """The command line of one worker: the same, with one worker."""
    return ["run", *arguments(replace(request, workers=1, report=False))]


@contextmanager
def show_epochs(console: Console) -> Iterator[None]:
    """In a log, a line per measured epoch, instead of a terminal's bar."""
    if console.is_terminal or console.quiet:
        yield
        return
    log, lines = logging.getLogger("resolvent.training"), logging.StreamHandler(sys.stdout)
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the remaining time on a terminal; nothing otherwise."""
    if not console.is_terminal:
        yield lambda done: None
        return
    from rich import progress as bars

    shown = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(bars.TextColumn("runs"), *shown, console=console) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda done: bar.update(task, completed=done)


def find(request: Run, tell: Tell = print) -> list[Job]:
    """The requested cells; for your own data, prints what was found in it."""
    if request.recipe != "train":
        size = request.size or ("small" if request.recipe in SMALL else "full")
        return cells_of(request.recipe, size, request.only or "", request.seeds)
    cell, task = train_cell(request.source, request.model, request.training)
    tell(task.describe())
    if (narrow := explain_narrow(task, cell.model)) is not None:
        tell(f"  note       {narrow}")
    if request.name is not None:
        cell = replace(cell, tags=(request.name,))
    return [cell.seeded(seed) for seed in request.seeds or (0,)]
