"""`resolvent run`: find the cells, tell what they cost, run them, say where the results are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from rich.console import Console
from rich.table import Table

from resolvent.conformance.destination import require_writable
from resolvent.conformance.load import UsageError
from resolvent.experiments.cell import Cell
from resolvent.experiments.estimate import duration, estimate
from resolvent.experiments.folder import RunError
from resolvent.experiments.goal import Kind, NormName
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.sweep import sweep
from resolvent.experiments.tasks import open_task
from resolvent.experiments.train import TrainOptions, train_cell
from resolvent.report import MissingPackage, write_report
from resolvent.report.table import KINDS
from resolvent.report.table import table as results

SMALL = ("quickstart",)  # recipes made for two cores


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
    def out(self) -> Path: ...
    @property
    def device(self) -> str: ...
    @property
    def dry_run(self) -> bool: ...
    @property
    def report(self) -> bool: ...
    @property
    def data(self) -> str: ...
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


def run(request: Request) -> int:
    """0 when every cell is done, 1 when one diverged. What the user can mend comes as a UsageError."""
    console = Console(soft_wrap=True, highlight=False)
    try:
        cells = find(request)
        if request.dry_run:
            foretell(cells, request.device, console)
            return 0
        require_writable(request.out / "report.html", "--out")
        records = sweep(cells, request.out, device=_device(request.device), told=console.print)
    except KeyboardInterrupt:
        console.print(f"stopped; everything so far is in {request.out}: the same command goes on from there.")
        return 130
    except (RunError, ValueError, TypeError, FileNotFoundError) as wrong:
        raise UsageError(str(wrong)) from wrong
    console.print(table(records))
    console.print(f"results: {(request.out / cells[0].recipe).resolve()}")
    if request.report:
        _page([request.out / cells[0].recipe], None, None, console)
    return 1 if any("failed" in record for record in records) else 0


def report(folders: list[Path], out: Path | None, title: str | None) -> None:
    """Write the page and say where it is."""
    _page(folders, out, title, Console(soft_wrap=True, highlight=False))


def _page(folders: list[Path], out: Path | None, title: str | None, console: Console) -> None:
    place = out or folders[0]
    require_writable(place / "report.html", "--out")
    try:
        page = write_report(folders, place, title)
    except (MissingPackage, ValueError) as wrong:
        raise UsageError(str(wrong)) from wrong
    console.print(f"The report is at {page.resolve()}")


def find(request: Request) -> list[Cell]:
    """The cells that the request names."""
    if request.recipe != "train":
        size = request.size or ("small" if request.recipe in SMALL else "full")
        return cells_of(request.recipe, size, request.only, request.seeds)
    eps = None if request.eps is None else float(Fraction(request.eps))
    names = ("data", "layer", "objective", "norm", "epochs", "batch_size", "lr", "width", "layers")
    options = TrainOptions(eps=eps, **{name: getattr(request, name) for name in names})
    cell, _ = train_cell(options)
    return [cell.seeded(seed) for seed in request.seeds or (0,)]


def foretell(cells: Sequence[Cell], device: str, console: Console) -> None:
    """Every cell with its cost; the same settings at another seed are measured once."""
    known: dict[str, Any] = {}
    total = 0.0
    for cell in cells:
        key = repr(cell.seeded(0))
        if key not in known:
            known[key] = estimate(cell, open_task(cell.task), device)
        console.print(f"{cell.place}: {known[key]}")
        total += known[key].seconds
    console.print(f"{len(cells)} runs, at most {duration(total)} in all on {device}.")


def table(records: Sequence[dict[str, Any]]) -> Table:
    """Mean over seeds of what was measured on the test split."""
    made = Table(box=None, pad_edge=False)
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(",".join(record["cell"]["tags"]), []).append(record)
    found = results(records[0]["cell"]["recipe"] if records else "", groups)
    for column in ("run", "seeds", *(f"{KINDS[kind]}\n{place}" for kind, place in found.columns)):
        made.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for row in found.rows:
        failed = f" ({row.failed} diverged)" if row.failed else ""
        values = [str(row.values.get(column, "-")) for column in found.columns]
        made.add_row(row.name, f"{row.seeds}{failed}", *values)
    return made


def _device(name: str) -> str:
    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as wrong:
        raise UsageError(f"--device {name!r} cannot be used here: {str(wrong).splitlines()[0]}") from None
    return name
