"""The tables of a report on a terminal: split where it is too narrow, never cut."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as Drawn

from resolvent.report.runs import Record
from resolvent.report.table import KINDS, Columns, Table, tables

WIDEST = 400  # characters of a line in a log: nobody's terminal, so that nothing is split


def show(records: Sequence[Record], console: Console) -> None:
    """Means over seeds, one table of the classifiers and one of the regressions."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if "study" not in record:
            groups.setdefault(",".join(record["cell"]["tags"]), []).append(record)
    for held in tables(records[0]["cell"]["recipe"], groups) if groups else ():
        console.print(f"{held.unit}; best: the checkpoint that validation chose.", soft_wrap=True)
        width = console.width if console.is_terminal else WIDEST
        for part in split(held, width):
            lines = Console(width=max(width, measured(held, part)), file=io.StringIO())
            lines.print(drawn(held, part))
            text: str = lines.file.getvalue()  # type: ignore[attr-defined]  # the buffer above
            console.print("\n".join(line.rstrip() for line in text.splitlines()), soft_wrap=True, highlight=False)


def split(held: Table, width: int) -> Iterable[Columns]:
    """The columns in parts that fit; one column at least, however narrow."""
    part: Columns = []
    for column in held.columns:
        if part and measured(held, [*part, column]) > width:
            yield part
            part = []
        part.append(column)
    yield part


def measured(held: Table, columns: Columns) -> int:
    """Characters that a line of these columns takes."""
    return Console(width=10 * WIDEST).measure(drawn(held, columns)).maximum


def drawn(held: Table, columns: Columns) -> Drawn:
    made = Drawn(box=None, pad_edge=False)
    made.add_column("run", no_wrap=True)
    several = any(row.seeds > 1 or row.failed for row in held.rows)
    for head in [*(["seeds"] if several else []), *(f"{KINDS[kind]}\n{place}" for kind, place in columns)]:
        made.add_column(head, justify="right", no_wrap=True)
    for row in held.rows:
        seeds = [f"{row.seeds}" + (f", {row.failed} diverged" if row.failed else "")] if several else []
        made.add_row(row.name.replace(",", " "), *seeds, *(str(row.values.get(column, "-")) for column in columns))
    return made
