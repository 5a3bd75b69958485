"""Tables as samples: one row per sample, or one row per step.

wide    one column holds the target, every other one a step, in column order; empty cells at the end of a row end the
        sequence. One channel.
long    when there are columns `id` and `time` (see `columns` for other names): rows with the same id are a sample,
        in the order of their times; one column holds its target, every other one is a channel.

The target column is the one named `label`, or else the one called label, class, target or y. A table that is read
like an earlier one (its `Layout`) may lack it; columns are then found by name, in any order.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from resolvent.data.preparation.preprocess import Layout
from resolvent.data.readers.sequences import Sequences, as_number, is_missing, is_word, number_of

ANSWERS = ("label", "class", "target", "y")
_LARGEST_CELL = 1 << 20
_DAY = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}")  # which of the numbers is the month is not told


@dataclass(frozen=True, eq=False)
class Table:
    """Cells as text, and the line number of each row."""

    columns: list[str]
    rows: list[list[str]]
    lines: Sequence[int]
    where: str

    def line(self, row: int) -> str:
        return f"{self.where}, line {self.lines[row]}"


def read_csv(text: str, where: str, header: bool = True) -> Table:
    """Separated by whichever of , ; tab is most frequent in the first line; without a header the target is first."""
    csv.field_size_limit(_LARGEST_CELL)
    first = re.sub('"[^"]*"', "", text.lstrip("\ufeff")).split("\n", 1)[0]  # quoted ones divide nothing
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
    return check_table(Table(columns, rows[body], lines[body], where), header)


def check_table(table: Table, header: bool = True) -> Table:
    """Require unique column names, and every row as wide as the header."""
    names = [name for name in table.columns if name]
    if header and names and None not in map(as_number, names):
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
            why = _misread(table) or "; complete that line or take it out"
            raise ValueError(f"{table.line(i)}: expected {len(table.columns)} cells, got {len(row)}{why}.")
    return table


def _misread(table: Table) -> str:
    """Why a table may have one column: a line before the names (Excel's sep=; too), or cells divided by something
    else."""
    why = "; names of columns stand in line 1, and cells are divided by commas, semicolons or tabs"
    return why if len(table.columns) == 1 or table.columns[0].startswith("sep=") else ""


def sequences(
    table: Table, label: str | None = None, like: Layout | None = None, needed: bool = True, group: str | None = None
) -> Sequences:
    """The samples of a table, wide or long by its columns; `like` is the layout to match.

    `group` names the column that says which samples belong together; it is not an input.
    """
    if group is not None and group not in table.columns:
        raise ValueError(f"{table.where}: expected a column {group!r} of groups, got {', '.join(table.columns[:20])}.")
    known = group or (None if like is None else like.group)
    # id and time tell samples and steps apart, and are no input anyway
    inputs = table if known is None or known.lower() in ("id", "time") else leave_out(table, (known,))
    found = _make_samples(inputs, label, like, needed)
    if group is None:
        return found
    cells = [row[table.columns.index(group)].strip() for row in table.rows]
    groups = _groups(table, cells, found)
    return replace(found, groups=groups, layout=replace(found.layout, group=group))


def leave_out(table: Table, names: Sequence[str]) -> Table:
    keep = [k for k, name in enumerate(table.columns) if name not in names]
    if len(keep) == len(table.columns):
        return table
    rows = [[row[k] for k in keep] for row in table.rows]
    return Table([table.columns[k] for k in keep], rows, table.lines, table.where)


def _groups(table: Table, cells: list[str], found: Sequences) -> tuple[str, ...]:
    """The group of each sample, which is the same in all of its rows."""
    empty = next((i for i, cell in enumerate(cells) if not cell), None)
    if empty is not None:
        raise ValueError(f"{table.line(empty)}: expected the name of a group, got an empty cell.")
    lower = [name.lower() for name in table.columns]
    if len(found.values) == len(cells) and not found.layout.channels:
        return tuple(cells)
    identity = lower.index("id")
    of: dict[str, str] = {}
    for i, cell in enumerate(cells):
        sample = table.rows[i][identity].strip()
        if of.setdefault(sample, cell) != cell:
            raise ValueError(f"{table.line(i)}: expected the group {of[sample]!r} of sample {sample}, got {cell!r}.")
    return tuple(of[sample] for sample in found.ids)


def _make_samples(table: Table, label: str | None, like: Layout | None, needed: bool) -> Sequences:
    if like is not None and not like.header and len(table.columns) == len(like.steps):
        table = Table([str(i) for i in range(len(table.columns))], table.rows, table.lines, table.where)
    answer = _answer_column(table, label, like, needed)
    if not needed and like is None and "time" in (names := [n.lower() for n in table.columns]) and "id" not in names:
        table = Table([*table.columns, "id"], [[*row, "1"] for row in table.rows], table.lines, table.where)
    lower = [name.lower() for name in table.columns]
    if "time" in lower and "id" not in lower and like is None:
        raise ValueError(
            f"{table.where}: expected a column of ids beside that of times, got {', '.join(table.columns[:20])}; --id "
            "names the one that says which sample a row is a step of, --ignore leaves the times out."
        )
    if ("id" in lower and "time" in lower) or (like is not None and set(like.channels) & set(table.columns)):
        return _long(table, answer, like)
    if like is not None and like.channels:
        raise ValueError(
            f"{table.where}: expected the columns id, time and {', '.join(like.channels)}, got "
            f"{', '.join(table.columns[:20])}."
        )
    return _wide(table, answer, like)


def _answer_column(table: Table, label: str | None, like: Layout | None, needed: bool) -> int | None:
    if like is None and not needed:
        return None  # series, each column of which is one of their channels
    wanted = label or (None if like is None or like.label not in table.columns else like.label)
    if wanted is not None:
        if wanted not in table.columns:
            raise ValueError(f"{table.where}: expected a column {wanted!r}, got {', '.join(table.columns[:20])}.")
        return table.columns.index(wanted)
    taken = () if like is None else (*like.channels, *like.steps)
    found = [i for i, name in enumerate(table.columns) if name.lower() in ANSWERS and name not in taken]
    if len(found) == 1:
        return found[0]
    if not needed and not found:
        return None
    raise ValueError(
        f"{table.where}: expected one column called {', '.join(ANSWERS)}, got {', '.join(table.columns[:20])}; "
        f"name it with label= (--label on the command line){_misread(table)}."
    )


def _wide(table: Table, answer: int | None, like: Layout | None) -> Sequences:
    lower = [name.lower() for name in table.columns]
    identity = lower.index("id") if "id" in lower else None
    steps = [i for i in range(len(table.columns)) if i not in (answer, identity)]
    if like is not None and like.header:
        steps = _in_order(table, steps, like)
    notes = [] if identity is None else [_unused_id(table, identity)]
    values, answers = [], []
    for i, row in enumerate(table.rows):
        cells = [row[k] for k in steps]
        while cells and not cells[-1].strip():
            cells.pop()
        if not cells:
            raise ValueError(f"{table.line(i)}: expected at least one value, got none.")
        values.append(_row_of_numbers(table, i, steps[: len(cells)])[:, None])
        if answer is not None:
            answers.append(_answer(row[answer], table.line(i)))
    early = sum(len(value) < len(steps) for value in values)
    notes += [f"{early} rows end in empty cells, which end their sequences"] if early else []
    layout = Layout(_name(table, answer), steps=tuple(table.columns[k] for k in steps))
    ids = () if identity is None else tuple(row[identity].strip() for row in table.rows)
    return Sequences(values, answers, table.where, notes=tuple(notes), layout=layout, ids=ids)


def _unused_id(table: Table, identity: int) -> str:
    repeated = len({row[identity] for row in table.rows}) < len(table.rows)
    more = "; some ids repeat: if a row is one step and not one sample, say so with --id id" if repeated else ""
    return f"the column id is not used{more}"


def _in_order(table: Table, steps: list[int], like: Layout) -> list[int]:
    """The training columns, in training order; more may follow, and the last ones may be missing."""
    place = {table.columns[i]: i for i in steps}
    known = [name for name in like.steps if name in place]
    if not known:
        return steps  # all names differ: use the column order
    absent = [name for name in like.steps[: like.steps.index(known[-1])] if name not in place]
    if absent:
        message = ", ".join(absent[:20])
        raise ValueError(f"{table.where}: expected the columns of the training file, of which {message} is missing.")
    new = [i for i in steps if table.columns[i] not in like.steps]
    if new and len(known) < len(like.steps):
        raise ValueError(f"{table.where}: expected the training file's columns, got {table.columns[new[0]]!r} too.")
    return [*(place[name] for name in known), *new]


def _long(table: Table, answer: int | None, like: Layout | None) -> Sequences:
    lower = [name.lower() for name in table.columns]
    identity, time = (lower.index(name) if name in lower else None for name in ("id", "time"))
    channels = [i for i in range(len(table.columns)) if i not in (answer, identity, time)]
    known = like is not None and bool(like.channels)
    channels, unused = _channels(table, channels, like) if like and known else _with_values(table, channels)
    if not table.rows:
        raise ValueError(f"{table.where}: expected at least one sample, found none below the names of the columns.")
    if not channels:
        message = "" if answer is None else f" and {table.columns[answer]}"
        raise ValueError(f"{table.where}: expected a column besides id, time{message}, got none.")
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        if identity is not None and is_missing(row[identity], name=True):
            raise ValueError(f"{table.line(i)}: expected the id of a sample, got {row[identity]!r}; drop such rows.")
        groups.setdefault("" if identity is None else row[identity].strip(), []).append(i)
    values, answers, even = [], [], True
    for rows in groups.values():
        order, regular = (rows, True) if time is None else _in_time(table, rows, time)
        even &= regular
        values.append(np.stack([_row_of_numbers(table, i, channels) for i in order]))
        if answer is not None:
            answers.append(_same_answer(table, rows, answer))
    names = tuple(table.columns[k] for k in channels)
    notes = [f"channels {', '.join(names)}"] if like is None else []
    notes += [] if even else ["time steps are uneven; values are taken one after another"]
    why = "" if known else ", where every cell is empty"
    named = ", ".join(name or "a column without a name" for name in unused[:20])
    notes += [f"not used: {named}{why}"] if unused else []
    if like is not None and like.label and identity is None:  # in training, where answers differed, there were ids
        notes += [f"no column {like.id or 'id'}: all rows are read as one sample"]
    layout = Layout(_name(table, answer), channels=names)
    return Sequences(values, answers, table.where, notes=tuple(notes), layout=layout, ids=tuple(groups))


def _with_values(table: Table, found: list[int]) -> tuple[list[int], list[str]]:
    """Columns that hold anything at all, and the names of the others."""
    held = [k for k in found if not all(is_missing(row[k]) for row in table.rows)]
    return held, [table.columns[k] for k in found if k not in held]


def _channels(table: Table, found: list[int], like: Layout) -> tuple[list[int], list[str]]:
    """The columns of the training channels, in training order, and the names of the others."""
    place = {table.columns[i]: i for i in found}
    absent = [name for name in like.channels if name not in place]
    if absent:
        raise ValueError(
            f"{table.where}: expected the channels {', '.join(like.channels)}, of which {', '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} missing; got {', '.join(list(place)[:20]) or 'none'}."
        )
    return [place[name] for name in like.channels], [name for name in place if name not in like.channels]


def _name(table: Table, answer: int | None) -> str | None:
    return None if answer is None else table.columns[answer]


def _in_time(table: Table, rows: list[int], time: int) -> tuple[list[int], bool]:
    """The rows of a sample in the order of their times, and whether those are evenly spaced (not checked for words)."""
    cells = [table.rows[i][time].strip() for i in rows]
    keys = _time_keys(cells)
    order = sorted(range(len(rows)), key=keys.__getitem__)
    words = [i for i, cell in enumerate(cells) if as_number(cell) is None] if isinstance(keys[0], str) else []
    wrong = next((i for i in words if is_missing(cells[i]) or _DAY.match(cells[i])), None)
    if wrong is not None or (words and order != list(range(len(rows)))):
        off = words[0] if wrong is None else wrong
        raise ValueError(
            f"{table.line(rows[off])}: expected a time as a number, or as a date like 2024-01-31 09:30, got "
            f"{cells[off]!r}; without a column of times (--id alone, or --ignore) rows are steps in their order."
        )
    for a, b in pairwise(order):
        if keys[a] == keys[b]:
            raise ValueError(
                f"{table.line(rows[b])}: the time {cells[b]!r} comes twice in one sample, first in line "
                f"{table.lines[rows[a]]}; take one of the rows out, or give the column id that tells samples apart."
            )
    gaps = np.zeros(0) if isinstance(keys[0], str) else np.diff([float(keys[i] - keys[order[0]]) for i in order])
    even = len(gaps) < 2 or float(gaps.max() - gaps.min()) <= 1e-6 * float(gaps.max())
    return [rows[i] for i in order], even


def _time_keys(cells: list[str]) -> list[Any]:
    """What times are sorted by: numbers (whole ones to the last digit), seconds of dates, else the words themselves."""
    if None not in map(as_number, cells):
        return [int(cell) if cell.isdecimal() else float(cell) for cell in cells]
    try:
        dates = [datetime.fromisoformat(cell) for cell in cells]
    except ValueError:
        return cells
    if len({date.tzinfo is None for date in dates}) > 1:
        return cells
    return [(date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() for date in dates]


def _same_answer(table: Table, rows: list[int], answer: int) -> str:
    first = _answer(table.rows[rows[0]][answer], table.line(rows[0]))
    for i in rows[1:]:
        if table.rows[i][answer].strip() != first:
            raise ValueError(
                f"{table.line(i)}: expected the label {first!r} as in line {table.lines[rows[0]]} of the same sample, "
                f"got {table.rows[i][answer][:40]!r}."
            )
    return first


def _answer(cell: str, where: str) -> str:
    text = cell.strip()
    if is_missing(text, name=True):
        raise ValueError(f"{where}: expected a label, got {cell!r}; drop such rows.")
    return text


def _row_of_numbers(table: Table, row: int, places: Sequence[int]) -> np.ndarray:
    cells = [table.rows[row][k] for k in places]
    try:
        return numbers(cells, table.line(row))
    except ValueError:
        _refuse_words(table, row, places)
        raise


def _refuse_words(table: Table, row: int, places: Sequence[int]) -> None:
    """Report the column of the first non-numeric cell, how many more it has, and possible remedies."""
    place = next((k for k in places if is_word(table.rows[row][k])), None)
    if place is None:
        return
    column = [each[place] for each in table.rows]
    words = sum(map(is_word, column))
    name, cell = table.columns[place], table.rows[row][place][:40]
    start = f"{table.line(row)}, column {name!r}: expected a number, or nothing where it is missing, got {cell!r}"
    if as_number(cell.replace(",", "")) is not None:
        raise ValueError(f"{start}. Write numbers with a point for decimals and no other marks: 1234.5.")
    if words > len(column) // 2 and name.isdecimal():
        raise ValueError(
            f"{start}. Without a header the label comes first and every other cell is a step; if this is another "
            "table, write the names of its columns into line 1."
        )
    if words > len(column) // 2:
        raise ValueError(
            f"{start}. Say what this column is (--label the labels, --id the sample that a row belongs to, --time "
            "when it was taken, --group which samples belong together), or leave it out with --ignore "
            f"{shlex.quote(name)}."
        )
    more = f"; {words} of its {len(column):,} cells are no numbers" if words > 1 else ""
    raise ValueError(f"{start}{more}. Empty those cells, then choose how they are filled with --missing.")


def numbers(cells: Sequence[str], where: str) -> np.ndarray:
    """(k,) float64: what float32 would lose of a large offset is there until channels are scaled."""
    try:
        if any("_" in cell for cell in cells):
            raise ValueError("1_000 is a number to numpy")
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        values = np.array([number_of(cell, where) for cell in cells])
    if np.isinf(values).any() or (np.abs(values) > np.finfo(np.float32).max).any():
        raise ValueError(
            f"{where}: expected finite numbers, got one beyond the range of float32; empty that cell, or clip it."
        )
    return values
