"""`resolvent run --dry-run`: what the cells would cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from resolvent.experiments.cell import Cell
from resolvent.experiments.estimate import Estimate, duration, estimate
from resolvent.experiments.study import Job, Study
from resolvent.usage.error import UsageError


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
