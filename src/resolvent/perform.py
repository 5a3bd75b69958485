"""`resolvent run`: find the cells, tell what they cost, run them, say where the results are."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from rich.console import Console

from resolvent.assess import number
from resolvent.conformance.destination import require_writable
from resolvent.conformance.load import UsageError
from resolvent.data.prepare import Missing, Scale
from resolvent.experiments.cell import Cell
from resolvent.experiments.estimate import Estimate, duration, estimate
from resolvent.experiments.fetch import MIB, MOST, fetch_runs
from resolvent.experiments.gang import work_together
from resolvent.experiments.goal import Kind, NormName
from resolvent.experiments.interrupt import interrupted_once, others_missed
from resolvent.experiments.lock import NO_ROOM
from resolvent.experiments.objects import Objects, is_url
from resolvent.experiments.pace import Pace
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.store import Store, open_store
from resolvent.experiments.study import Job, Study
from resolvent.experiments.sweep import sweep
from resolvent.experiments.train import TrainOptions, train_cell
from resolvent.report import MissingPackage, require_packages, write_report
from resolvent.report.terminal import show
from resolvent.training.crew import crew_of_torchrun, speaks

SMALL = ("quickstart",)  # recipes made for two cores
OF_DATA = ("data", "test", "label", "missing", "scale")  # options of `train` that go on to workers as they are
OF_TRAINING = ("layer", "objective", "norm", "epochs", "batch_size", "lr", "width", "layers")


class Request(Protocol):
    """What the command line hands over."""

    @property
    def recipe(self) -> str: ...
    @property
    def only(self) -> str: ...
    @property
    def size(self) -> Literal["full", "small"] | None: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def out(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> Literal["float32", "bf16"] | None: ...
    @property
    def evaluate_every(self) -> int | None: ...
    @property
    def attack_batch(self) -> int | None: ...
    @property
    def dry_run(self) -> bool: ...
    @property
    def report(self) -> bool: ...
    @property
    def data(self) -> str: ...
    @property
    def test(self) -> str | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def header(self) -> bool: ...
    @property
    def missing(self) -> Missing: ...
    @property
    def scale(self) -> Scale: ...
    @property
    def layer(self) -> str: ...
    @property
    def objective(self) -> Kind: ...
    @property
    def norm(self) -> NormName: ...
    @property
    def eps(self) -> str | None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...


def run(request: Request, page: Path | None = None) -> int:
    """0 when every cell is done, 1 when one diverged. What the user can mend comes as a UsageError.

    `page` is the folder of the report; the recipe's own when left out.
    """
    console = Console(soft_wrap=True, highlight=False, quiet=not speaks())
    if request.report and not request.dry_run:
        _require_page()
    try:
        cells = [_pace(request).of(cell) for cell in find(request, console.print)]
        if request.dry_run:
            foretell(cells, _device(request.device), console)
            return 0
        if not is_url(request.out):
            require_writable(Path(request.out) / "report.html", "--out")
        with epochs_told(console):
            records = _records(request, cells, console)
    except KeyboardInterrupt:
        console.print(f"stopped; everything so far is in {request.out}: the same command goes on from there.")
        return 130
    except BrokenPipeError:  # nobody reads on
        raise
    except (ValueError, TypeError, OSError, ImportError) as wrong:
        raise UsageError(_trouble(wrong, request.out)) from wrong
    _tell(records, console)
    recipe = f"{request.out.rstrip('/')}/{cells[0].recipe}"
    console.print(f"results: {recipe if is_url(recipe) else Path(recipe).resolve()}")
    if request.report and speaks():
        _page([recipe], None if page is None else str(page), None, console)
    return 1 if any("failed" in record for record in records) else 0


def _trouble(wrong: Exception, out: str) -> str:
    """What happened, where, and how to go on."""
    if isinstance(wrong, OSError) and wrong.errno in NO_ROOM:
        place = f" ({wrong.filename})" if wrong.filename else ""
        return (
            f"the disk is full{place}: {wrong.strerror}. Nothing that was finished is lost; free some space, and the "
            f"same command goes on from what is in {out}."
        )
    return str(wrong).removeprefix("run: ").removeprefix("report: ")


def _tell(records: Sequence[dict[str, Any]], console: Console) -> None:
    if any("study" not in record for record in records):
        show(records, console)
    for record in records:
        if "study" in record:
            console.print(record["study"]["text"])


def _records(request: Request, cells: Sequence[Any], console: Console) -> list[dict[str, Any]]:
    """Run what is missing, alone or with workers, and read what was found."""
    device = _device(request.device)
    with interrupted_once(), others_missed(), crew_of_torchrun(device):
        store = open_store(request.out)
        if request.workers > 1 and len(cells) > 1:
            _with_workers(request, store, [cell.place for cell in cells], console)
        return sweep(cells, store, device=device, told=console.print)


def _with_workers(request: Request, store: Store, places: list[str], console: Console) -> None:
    with progress(console, len(places)) as tick:
        work_together(arguments(request), store, places, request.workers, console.print, tick)


def arguments(request: Request) -> list[str]:
    """The command line of one worker."""
    made = ["run", request.recipe, "--out", str(request.out), "--device", request.device, "--no-report"]
    made += ["--only", request.only] if request.only else []
    made += ["--size", request.size] if request.size else []
    made += ["--seeds", *map(str, request.seeds)] if request.seeds else []
    made += _pace(request).arguments()
    if request.recipe == "train":
        for name in (*OF_DATA, *OF_TRAINING, "eps"):
            value = getattr(request, name)
            made += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        made += [] if request.header else ["--no-header"]
    return made


@contextmanager
def epochs_told(console: Console) -> Iterator[None]:
    """In a log, a line for each measured epoch, where a terminal has a bar."""
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
    """A bar with the time left on a terminal; nothing otherwise."""
    if not console.is_terminal:
        yield lambda done: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda done: bar.update(task, completed=done)


def _require_page() -> None:
    try:
        require_packages()
    except MissingPackage as missing:
        raise UsageError(f"{missing}; or leave the page out with --no-report") from missing


def report(folders: list[str], out: str | None, title: str | None, fetch_limit: int = MOST // MIB) -> None:
    """Write the page and say where it is. `fetch_limit` is in MiB, for runs behind a URL."""
    if fetch_limit < 1:
        raise UsageError(f"--fetch-limit is in MiB and at least 1, got {fetch_limit}")
    _page(folders, out, title, Console(soft_wrap=True, highlight=False), fetch_limit * MIB)


def _page(folders: list[str], out: str | None, title: str | None, console: Console, most: int = MOST) -> None:
    """From and to folders or URLs."""
    target = out or folders[0]
    with tempfile.TemporaryDirectory(prefix="resolvent-") as scratch:
        place = Path(scratch) / "page" if is_url(target) else Path(target)
        require_writable(place / "report.html", "--out")
        try:
            found = {_local(folder, Path(scratch) / str(i), most): folder for i, folder in enumerate(folders)}
            page = write_report(list(found), place, title, shown={p: f for p, f in found.items() if is_url(f)})
            if is_url(target):
                for made in place.iterdir():
                    Objects(target).send(made, made.name)
        except (MissingPackage, ValueError, OSError) as wrong:
            raise UsageError(_trouble(wrong, target)) from wrong
    console.print(f"The report is at {f'{target}/{page.name}' if is_url(target) else page.resolve()}")


def _local(folder: str, scratch: Path, most: int) -> Path:
    return fetch_runs(folder, scratch, most) if is_url(folder) else Path(folder)


def find(request: Request, told: Callable[[str], None] = print) -> list[Job]:
    """The cells that the request names; of one's own data is told what was found in it."""
    if request.recipe != "train":
        size = request.size or ("small" if request.recipe in SMALL else "full")
        return cells_of(request.recipe, size, request.only, request.seeds)
    eps = None if request.eps is None else number("--eps", request.eps)
    names = (*OF_DATA, *OF_TRAINING, "header")
    options = TrainOptions(eps=eps, **{name: getattr(request, name) for name in names})
    cell, task = train_cell(options)
    told(task.describe())
    return [cell.seeded(seed) for seed in request.seeds or (0,)]


def _pace(request: Request) -> Pace:
    return Pace(request.precision, request.evaluate_every, request.attack_batch)


def foretell(cells: Sequence[Job], device: str, console: Console) -> None:
    """Every cell with its cost; the same settings at another seed are measured once."""
    known: dict[str, Estimate | None] = {}
    lacking: list[str] = []
    total = 0.0
    for cell in cells:
        if isinstance(cell, Study):
            console.print(f"{cell.place}: an analysis without training, seconds to a minute")
            continue
        key = repr(cell.seeded(0))
        if key not in known:
            known[key] = _cost(cell, device, lacking)
        cost = known[key]
        console.print(f"{cell.place}: {cost or 'its data are not here'}")
        total += 0.0 if cost is None else cost.seconds
    console.print(f"{len(cells)} {'run' if len(cells) == 1 else 'runs'}, at most {duration(total)} in all on {device}.")
    if lacking:
        raise UsageError(f"data of some runs are not here; the others would run. {lacking[0]}")


def _cost(cell: Cell, device: str, lacking: list[str]) -> Estimate | None:
    try:
        return estimate(cell, device)
    except FileNotFoundError as absent:
        lacking.append(str(absent))
        return None


def _device(name: str) -> str:
    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as wrong:
        raise UsageError(f"--device {name!r} cannot be used here: {str(wrong).splitlines()[0]}") from None
    return name
