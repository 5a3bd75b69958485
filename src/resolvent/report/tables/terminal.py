"""The tables of a report on a terminal: split where it is too narrow, never cut."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as Drawn

from resolvent.report.runs import Record
from resolvent.report.tables.column import Column
from resolvent.report.tables.table import LEGEND, Table, count, tables

WIDEST = 400  # characters of a line in a log: nobody's terminal, so that nothing is split


def show(records: Sequence[Record], console: Console) -> None:
    """Means over seeds, one table of the classifiers and one of the regressions."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if "study" not in record:
            groups.setdefault(",".join(record["cell"]["tags"]), []).append(record)
    for held in tables(records[0]["cell"]["recipe"], groups) if groups else ():
        console.print(f"{held.title}. {held.unit}; {LEGEND}", soft_wrap=True, markup=False)
        width = console.width if console.is_terminal else WIDEST
        for part in split(held, width):
            lines = Console(width=max(width, measure_width(held, part)), file=io.StringIO())
            lines.print(draw_table(held, part))
            text: str = lines.file.getvalue()  # type: ignore[attr-defined]  # the buffer above
            shown = "\n".join(line.rstrip() for line in text.splitlines())
            console.print(shown, soft_wrap=True, highlight=False, markup=False)


def split(held: Table, width: int) -> Iterable[list[Column]]:
    """The columns in parts that fit; one column at least, however narrow."""
    part: list[Column] = []
    for column in held.columns:
        if part and measure_width(held, [*part, column]) > width:
            yield part
            part = []
        part.append(column)
    yield part


def measure_width(held: Table, columns: list[Column]) -> int:
    """Characters that a line of these columns takes."""
    return Console(width=10 * WIDEST).measure(draw_table(held, columns)).maximum


def draw_table(held: Table, columns: list[Column]) -> Drawn:
    """These columns beside the runs' names; what a run is stands with the first ones."""
    made = Drawn(box=None, pad_edge=False)
    made.add_column("run", no_wrap=True)
    facts = _facts(held) if columns[:1] == held.columns[:1] else {}
    for head in [*facts, *(f"{column.name}\n{column.terms}\n{column.place}" for column in columns)]:
        made.add_column(head, justify="right", no_wrap=True)
    for k, row in enumerate(held.rows):
        values = [str(row.values.get(column, "-")) for column in columns]
        made.add_row(row.name.replace(",", " "), *(fact[k] for fact in facts.values()), *values)
    return made


def _facts(held: Table) -> dict[str, list[str]]:
    """Seeds where there are several, epochs, parameters: head -> one entry a row."""
    seeds = [f"{row.seeds}" + (f", {row.failed} diverged" if row.failed else "") for row in held.rows]
    several = {"seeds": seeds} if any(row.seeds > 1 or row.failed for row in held.rows) else {}
    epochs, sizes = ([count(getattr(row, name)) for row in held.rows] for name in ("epochs", "parameters"))
    return several | {"epochs": epochs, "parameters": sizes}
