"""The columns of a user's table by their names there: sample id, time, and ignored ones.

name_columns(table, Columns(id="Pump ID", time="Timestamp", ignore=("Comment",)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from resolvent.data.preparation.preprocess import Layout
from resolvent.data.readers.table import Table, leave_out


@dataclass(frozen=True)
class Columns:
    """Column names as in the file; None: `id` and `time`, if present.

    target, need  of a forecast: the channel wanted, and the steps of a window with its targets
    """

    id: str | None = None
    time: str | None = None
    ignore: tuple[str, ...] = ()
    target: str | None = None
    need: int = 0

    @staticmethod
    def of(id: str | None, time: str | None, ignore: str | Sequence[str] | None) -> Columns:
        """`ignore` is a list, or comma-separated names."""
        names = ignore.split(",") if isinstance(ignore, str) else ignore or ()
        return Columns(id, time, tuple(name.strip() for name in names))

    def given(self) -> str | None:
        """The first option that is set, of those that name columns."""
        return next((name for name in ("id", "time", "ignore") if getattr(self, name)), None)


NO_COLUMNS = Columns()
_NAMELESS = ("", "Unnamed: 0", "__index_level_0__")  # as pandas and R write the numbers of rows


def name_columns(table: Table, columns: Columns, like: Layout | None = None) -> tuple[Table, tuple[str, ...]]:
    """The table with its columns called `id` and `time`, without those that are ignored or only number the rows; notes.

    `like` has the names of an earlier table, some of which may be missing here. Rows of one id without times are steps
    in the order of the file, and so are those of a series.
    """
    counts = _row_numbers(table)
    kept = leave_out(table, counts)
    known = Columns() if like is None else Columns(like.id, like.time, like.ignore)
    asked = Columns(columns.id or known.id, columns.time or known.time, columns.ignore or known.ignore)
    for name in (columns.id, columns.time, *columns.ignore):
        if name is not None and name not in kept.columns:
            raise ValueError(f"{table.where}: expected a column {name!r}, got {', '.join(kept.columns[:20])}.")
    kept = leave_out(kept, asked.ignore)
    for name, role in ((asked.id, "id"), (asked.time, "time")):
        kept = _rename(kept, name, role)
    notes = tuple(f"not used: the column {name!r}, which numbers the rows" for name in counts)
    if "time" in _lower(kept) or (like is not None and like.channels):
        return kept, notes
    if (asked.id is None or not _repeats(kept)) and not _is_series(kept, columns):
        return kept, notes
    return _number_steps(kept), (*notes, "no column of times: rows are steps in the order of the file")


def _row_numbers(table: Table) -> tuple[str, ...]:
    """The names of columns that only number the rows."""
    columns = {name: [row[k] for row in table.rows] for k, name in enumerate(table.columns) if name in _NAMELESS}
    return tuple(name for name, cells in columns.items() if len({c for c in cells if c.isdecimal()}) == len(cells) > 1)


def _is_series(table: Table, columns: Columns) -> bool:
    """Whether rows can only be a forecast's steps: a column is the wanted channel; or a row is too short for a window,
    and its columns, which are not one name with numbers, are no steps."""
    stems = {name.rstrip("0123456789") for name in table.columns}
    return columns.target in table.columns or (len(table.columns) < columns.need and len(stems) == len(table.columns))


def _rename(table: Table, name: str | None, role: str) -> Table:
    if name is None or name not in table.columns or name.lower() == role:
        return table
    if role in _lower(table):
        raise ValueError(f"{table.where}: expected one column for {role}, got {name!r} and {role!r}; ignore one.")
    return Table([role if one == name else one for one in table.columns], table.rows, table.lines, table.where)


def _repeats(table: Table) -> bool:
    place = _lower(table).index("id")
    return max(Counter(row[place] for row in table.rows).values(), default=0) > 1


def _number_steps(table: Table) -> Table:
    rows = [[*row, str(i)] for i, row in enumerate(table.rows)]
    return Table([*table.columns, "time"], rows, table.lines, table.where)


def _lower(table: Table) -> list[str]:
    return [name.lower() for name in table.columns]
