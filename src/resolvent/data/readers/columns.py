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
    """Column names as in the file; None: `id` and `time`, if present."""

    id: str | None = None
    time: str | None = None
    ignore: tuple[str, ...] = ()

    @staticmethod
    def of(id: str | None, time: str | None, ignore: str | Sequence[str] | None) -> Columns:
        """`ignore` is a list, or comma-separated names."""
        names = ignore.split(",") if isinstance(ignore, str) else ignore or ()
        return Columns(id, time, tuple(name.strip() for name in names))

    def given(self) -> str | None:
        """The first option that is set."""
        return next((name for name in ("id", "time", "ignore") if getattr(self, name)), None)


NO_COLUMNS = Columns()
_NAMELESS = ("", "Unnamed: 0", "__index_level_0__")  # as pandas and R write the numbers of rows


def find_row_numbers(table: Table) -> tuple[str, ...]:
    """The names of columns that only number the rows."""
    columns = {name: [row[k] for row in table.rows] for k, name in enumerate(table.columns) if name in _NAMELESS}
    return tuple(name for name, cells in columns.items() if len({c for c in cells if c.isdecimal()}) == len(cells) > 1)


def name_columns(table: Table, columns: Columns, like: Layout | None = None) -> Table:
    """The table with its columns called `id` and `time`, without those that are ignored.

    `like` has the names of an earlier table, some of which may be missing here. Rows of one id without times are steps
    in the order of the file.
    """
    known = Columns() if like is None else Columns(like.id, like.time, like.ignore)
    asked = Columns(columns.id or known.id, columns.time or known.time, columns.ignore or known.ignore)
    for name in (columns.id, columns.time, *columns.ignore):
        if name is not None and name not in table.columns:
            raise ValueError(f"{table.where}: expected a column {name!r}, got {', '.join(table.columns[:20])}.")
    kept = leave_out(table, asked.ignore)
    for name, role in ((asked.id, "id"), (asked.time, "time")):
        kept = _rename(kept, name, role)
    repeated = asked.id is not None and "time" not in _lower(kept) and _repeats(kept)
    return _number_steps(kept) if repeated and (like is None or not like.channels) else kept


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
