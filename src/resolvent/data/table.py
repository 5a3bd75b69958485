"""Tables as samples: one row a sample, or one row a step.

wide    one column holds the answer, every other one a step, in the order of the columns; empty cells at the end of a
        row end the sequence. One channel.
long    when there are columns `id` and `time`: rows of one id are a sample, in the order of their times; one column
        holds its answer, every other one is a channel.

The answer's column is the one named `label`, or else the one called label, class, target or y.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from resolvent.data.sequences import Sequences, number_of

ANSWERS = ("label", "class", "target", "y")
_LARGEST_CELL = 1 << 20


@dataclass(frozen=True, eq=False)
class Table:
    """Cells as text, and the line in which each row stands."""

    columns: list[str]
    rows: list[list[str]]
    lines: Sequence[int]
    where: str

    def line(self, row: int) -> str:
        return f"{self.where}, line {self.lines[row]}"


def read_csv(text: str, where: str, header: bool = True) -> Table:
    """Commas, semicolons or tabs, whichever the first line has most of; without a header the first column answers."""
    csv.field_size_limit(_LARGEST_CELL)
    first = text.lstrip("\ufeff").split("\n", 1)[0]
    divider = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=divider, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row and any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as wrong:
        raise ValueError(f"{where}, line {reader.line_num}: {wrong}.") from wrong
    if not rows:
        raise ValueError(f"{where}: expected a table, found no rows.")
    columns = [cell.strip() for cell in rows[0]] if header else ["label", *(str(i) for i in range(len(rows[0]) - 1))]
    body = slice(1, None) if header else slice(0, None)
    return checked(Table(columns, rows[body], lines[body], where), header)


def checked(table: Table, header: bool = True) -> Table:
    """Column names once each, every row as wide as the header."""
    names = [name for name in table.columns if name]
    if header and names and all(is_number(name) for name in names):
        raise ValueError(
            f"{table.where}, line 1: expected the names of the columns, got numbers; add a header, or pass "
            "header=False (--no-header) when the first column is the label."
        )
    seen: set[str] = set()
    twice = [name for name in table.columns if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise ValueError(f"{table.where}: expected every column name once, got {twice[0]!r} again.")
    for i, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            raise ValueError(f"{table.line(i)}: expected {len(table.columns)} cells, got {len(row)}.")
    return table


def sequences(table: Table, label: str | None = None) -> Sequences:
    """The samples of a table, wide or long by its columns."""
    answer = _answer_column(table, label)
    lower = [name.lower() for name in table.columns]
    if "id" in lower and "time" in lower:
        return _long(table, answer, lower.index("id"), lower.index("time"))
    return _wide(table, answer, lower)


def _answer_column(table: Table, label: str | None) -> int:
    if label is not None:
        if label not in table.columns:
            raise ValueError(f"{table.where}: expected a column {label!r}, got {', '.join(table.columns[:20])}.")
        return table.columns.index(label)
    found = [i for i, name in enumerate(table.columns) if name.lower() in ANSWERS]
    if len(found) != 1:
        raise ValueError(
            f"{table.where}: expected one column called {', '.join(ANSWERS)}, got {', '.join(table.columns[:20])}; "
            "name it with label= (--label on the command line)."
        )
    return found[0]


def _wide(table: Table, answer: int, lower: list[str]) -> Sequences:
    steps = [i for i in range(len(table.columns)) if i != answer and lower[i] != "id"]
    notes = ["the column id is not used"] if "id" in lower else []
    values, answers = [], []
    for i, row in enumerate(table.rows):
        cells = [row[k] for k in steps]
        while cells and not cells[-1].strip():
            cells.pop()
        if not cells:
            raise ValueError(f"{table.line(i)}: expected at least one value, got none.")
        values.append(numbers(cells, table.line(i))[:, None])
        answers.append(_answer(row[answer], table.line(i)))
    early = sum(len(value) < len(steps) for value in values)
    notes += [f"{early} rows end in empty cells, which end their sequences"] if early else []
    return Sequences(values, answers, table.where, notes=tuple(notes))


def _long(table: Table, answer: int, identity: int, time: int) -> Sequences:
    channels = [i for i in range(len(table.columns)) if i not in (answer, identity, time)]
    if not channels:
        raise ValueError(f"{table.where}: expected a column besides id, time and {table.columns[answer]}, got none.")
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        groups.setdefault(row[identity].strip(), []).append(i)
    values, answers, even = [], [], True
    for rows in groups.values():
        order, regular = _in_time(table, rows, time)
        even &= regular
        values.append(np.stack([numbers([table.rows[i][k] for k in channels], table.line(i)) for i in order]))
        answers.append(_same_answer(table, rows, answer))
    notes = () if even else ("time steps are uneven; values are taken one after another",)
    return Sequences(
        values, answers, table.where, notes=(f"channels {', '.join(table.columns[k] for k in channels)}", *notes)
    )


def _in_time(table: Table, rows: list[int], time: int) -> tuple[list[int], bool]:
    """The rows of a sample in the order of their times, and whether those are evenly spaced (words: not asked)."""
    cells = [table.rows[i][time].strip() for i in rows]
    numeric = all(is_number(cell) for cell in cells)
    keys: list[float] | list[str] = [float(cell) for cell in cells] if numeric else cells
    order = sorted(range(len(rows)), key=keys.__getitem__)
    for a, b in pairwise(order):
        if keys[a] == keys[b]:
            raise ValueError(f"{table.line(rows[b])}: the time {cells[b]!r} comes twice in one sample.")
    gaps = np.diff([float(cells[i]) for i in order]) if numeric else np.zeros(0)
    even = len(gaps) < 2 or float(gaps.max() - gaps.min()) <= 1e-6 * float(gaps.max())
    return [rows[i] for i in order], even


def _same_answer(table: Table, rows: list[int], answer: int) -> str:
    first = _answer(table.rows[rows[0]][answer], table.line(rows[0]))
    for i in rows[1:]:
        if table.rows[i][answer].strip() != first:
            raise ValueError(
                f"{table.line(i)}: expected the answer {first!r} as in line {table.lines[rows[0]]} of the same sample, "
                f"got {table.rows[i][answer][:40]!r}."
            )
    return first


def _answer(cell: str, where: str) -> str:
    text = cell.strip()
    if not text or text == "?":
        raise ValueError(f"{where}: expected an answer, got {cell!r}.")
    return text


def numbers(cells: Iterable[str], where: str) -> np.ndarray:
    """(k,) float32."""
    cells = list(cells)
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        values = np.array([number_of(cell, where) for cell in cells])
    if np.isinf(values).any() or (np.abs(values) > np.finfo(np.float32).max).any():
        raise ValueError(f"{where}: expected finite numbers, got one beyond the range of float32.")
    return values.astype(np.float32)


def is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
