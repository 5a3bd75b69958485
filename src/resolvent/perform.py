"""`resolvent run`: find the cells, tell what they cost, run them, say where the results are."""

from __future__ import annotations

import statistics
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
    return 1 if any("failed" in record for record in records) else 0


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
    for column in ("run", "seeds", "clean", "PGD-10", "AutoAttack", "certified"):
        made.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(",".join(record["cell"]["tags"]), []).append(record)
    for name, group in groups.items():
        good = [record for record in group if "failed" not in record]
        failed = f" ({len(group) - len(good)} diverged)" if len(good) < len(group) else ""
        values = [[pick(record) for record in good] for pick in (_clean, _pgd, _attacked, _certified)]
        made.add_row(name, f"{len(group)}{failed}", *map(_mean, values))
    return made


def _clean(record: dict[str, Any]) -> float | None:
    return record["training"]["summary"]["best"].get("test_clean")


def _pgd(record: dict[str, Any]) -> float | None:
    return record["training"]["summary"]["best"].get("test_robust")


def _attacked(record: dict[str, Any]) -> float | None:
    found = [attack["accuracy"] for attack in record.get("attacks", {}).values() if attack["checkpoint"] == "best"]
    return found[0] if found else None


def _certified(record: dict[str, Any]) -> float | None:
    curve = record.get("certificate", {}).get("curve") or []
    return curve[0]["certified"] if curve else None


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * statistics.mean(known):.1f} %" if known else "-"


def _device(name: str) -> str:
    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as wrong:
        raise UsageError(f"--device {name!r} cannot be used here: {str(wrong).splitlines()[0]}") from None
    return name
