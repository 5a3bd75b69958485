"""The last column of the Long Range Arena's tables: every model's average, from the tables of the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from resolvent.report.average import RECIPE, average
from resolvent.report.tables.column import PLACES, Column
from resolvent.report.tables.table import Row, Table, Value
from resolvent.report.targets import target


def arena_averages(made: Sequence[Table]) -> list[Table]:
    """One table with a row for each model with a number for every task; none if there is no such model."""
    scores: dict[str, dict[str, Row]] = {}
    for row in (row for table in made if table.recipe == RECIPE for row in table.rows):
        name, _, task = row.name.partition(",")
        scores.setdefault(name, {})[task] = row
    rows = [found for name, held in scores.items() if (found := _row(name, held)) is not None]
    columns = [Column("clean", place) for place in PLACES]
    return [Table(RECIPE, columns, rows, task="average of the tasks")] if rows else []


def _row(name: str, held: dict[str, Row]) -> Row | None:
    known = target(RECIPE, (name, "average"))
    values = {}
    for place in PLACES:
        found = {task: value.mean for task, row in held.items() if (value := row.value("clean", place)) is not None}
        mean = average(name, found)
        if mean is not None:
            column = Column("clean", place)
            values[column] = Value(mean, None, None if known is None else known.values.get(column.what))
    if not values:
        return None
    seeds, failed = min(row.seeds for row in held.values()), sum(row.failed for row in held.values())
    return Row(f"{name},average", seeds, failed, values, "" if known is None else known.source)
