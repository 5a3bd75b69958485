"""The tables of a report on a terminal: split if it is too narrow, never truncated."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.table import Table as Drawn

from resolvent.report.runs import Record
from resolvent.report.tables.column import Column
from resolvent.report.tables.table import LEGEND, Table, count, tables

T = TypeVar("T")
WIDEST = 400  # characters of a line in a log: nobody's terminal, so that nothing is split


def show(records: Sequence[Record], console: Console) -> None:
    """Means over seeds, one table of the classifiers and one of the regressions."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if "study" not in record:
            groups.setdefault(",".join(record["cell"]["tags"]), []).append(record)
    for held in tables(records[0]["cell"]["recipe"], groups) if groups else ():
        console.print(f"{held.title}. {held.unit}; {LEGEND}", soft_wrap=True, markup=False)
        print_parts(held.columns, partial(draw_table, held), console)


def print_parts(columns: Sequence[T], draw: Callable[[list[T]], Drawn], console: Console) -> None:
    """A table in parts that fit a terminal, each of one column at least; whole in a log."""
    width = console.width if console.is_terminal else WIDEST
    for part in split(columns, lambda some: measure_width(draw(some)) <= width):
        lines = Console(width=max(width, measure_width(draw(part))), file=io.StringIO())
        lines.print(draw(part))
        text: str = lines.file.getvalue()  # type: ignore[attr-defined]  # the buffer above
        shown = "\n".join(line.rstrip() for line in text.splitlines())
        console.print(shown, soft_wrap=True, highlight=False, markup=False)


def split(columns: Sequence[T], fits: Callable[[list[T]], bool]) -> Iterable[list[T]]:
    """The columns in parts that fit; one column at least, however narrow."""
    part: list[T] = []
    for column in columns:
        if part and not fits([*part, column]):
            yield part
            part = []
        part.append(column)
    yield part


def measure_width(drawn: Drawn) -> int:
    """Characters that a line of it takes."""
    return Console(width=10 * WIDEST).measure(drawn).maximum


def draw_table(held: Table, columns: list[Column]) -> Drawn:
    """These columns next to the runs' names; facts about runs are in the first part."""
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
    shown = any(row.seeds > 1 or row.failed for row in held.rows)
    several = {"seeds": [row.seeds_text for row in held.rows]} if shown else {}
    epochs, sizes = ([count(getattr(row, name)) for row in held.rows] for name in ("epochs", "parameters"))
    return several | {"epochs": epochs, "parameters": sizes}
