"""A recipe's runs as a table: one row a cell, mean and deviation over seeds, the published value and the gap beside.

Classifiers have accuracies in per cent; regressions squared errors, of which less is better. They never share a table.
"""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass

from resolvent.report.runs import Record
from resolvent.report.targets import Target, target

KINDS = {"clean": "clean", "pgd10": "PGD-10", "autoattack": "AutoAttack"}
PLACES = ("best", "last")
HEADS = ("recipe", "run", "seeds", "diverged", "what", "unit", "mean", "deviation", "published", "source")  # of the CSV
Columns = list[tuple[str, str]]  # (kind, place)


@dataclass(frozen=True)
class Value:
    """Per cent, or a squared error, over seeds; the deviation needs two."""

    mean: float
    deviation: float | None
    published: float | None
    error: bool = False

    @property
    def gap(self) -> float | None:
        return None if self.published is None else self.mean - self.published

    def __str__(self) -> str:
        form = ".3g" if self.error else ".1f"
        return f"{self.mean:{form}}" + ("" if self.deviation is None else f" ± {self.deviation:{form}}")


@dataclass(frozen=True)
class Row:
    name: str
    seeds: int
    failed: int
    values: dict[tuple[str, str], Value]
    source: str


@dataclass(frozen=True)
class Table:
    recipe: str
    columns: Columns
    rows: list[Row]
    errors: bool = False

    @property
    def unit(self) -> str:
        return "Squared error (less is better)" if self.errors else "Accuracy in per cent"

    @property
    def published(self) -> bool:
        return any(value.published is not None for row in self.rows for value in row.values.values())

    def markdown(self) -> str:
        heads = ["run", "seeds", *(f"{KINDS[kind]}, {place}" for kind, place in self.columns)]
        lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for row in self.rows:
            cells = [_told(row.values.get(column)) for column in self.columns]
            lines.append(f"| {' | '.join([row.name, _seeds(row), *cells])} |")
        return "\n".join(lines)

    def csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(HEADS)
        for row in self.rows:
            for (kind, place), value in row.values.items():
                numbers = [f"{value.mean:.4f}", _number(value.deviation), _number(value.published)]
                unit = "squared error" if self.errors else "per cent"
                head = [self.recipe, row.name, row.seeds, row.failed, f"{kind}_{place}", unit]
                writer.writerow([*head, *numbers, row.source if value.published is not None else ""])
        return buffer.getvalue()


def tables(recipe: str, cells: dict[str, list[Record]]) -> list[Table]:
    """One of the classifiers and one of the regressions, where there are such."""
    wrong = {name: held for name, held in cells.items() if all(_regresses(record) for record in held)}
    right = {name: held for name, held in cells.items() if name not in wrong}
    return [table(recipe, part, bool(part is wrong)) for part in (right, wrong) if part]


def table(recipe: str, cells: dict[str, list[Record]], errors: bool = False) -> Table:
    """Columns are those that at least one run has."""
    rows = [row(recipe, name, records, errors) for name, records in cells.items()]
    order = [(kind, place) for kind in KINDS for place in PLACES]
    present = {column for each in rows for column in each.values}
    return Table(recipe, [column for column in order if column in present], rows, errors)


def row(recipe: str, name: str, records: list[Record], errors: bool = False) -> Row:
    failed = sum("failed" in record for record in records)
    good = [record for record in records if "failed" not in record and _regresses(record) == errors]
    known = target(recipe, tuple(name.split(",")))
    values = {}
    for kind in KINDS:
        for place in PLACES:
            found = [m for record in good if (m := measured(record, kind, place)) is not None]
            if found:
                values[kind, place] = _value(found, known, f"{kind}_{place}", errors)
    return Row(name, len(records), failed, values, known.source if known else "")


def measured(record: Record, kind: str, place: str) -> float | None:
    """Of the checkpoint that is called best or last: a share of the test split in per cent, or a squared error."""
    summary = record["training"]["summary"]
    if kind in ("clean", "pgd10"):
        share = summary.get(place, {}).get("test_clean" if kind == "clean" else "test_robust")
    else:
        share = _attacked(record, place)
    if share is None:
        return None
    return -share if _regresses(record) else 100.0 * share


def _regresses(record: Record) -> bool:
    """Whether its scores are minus squared errors, which are no accuracies."""
    return record["task"].get("classes", 0) is None


def _attacked(record: Record, place: str) -> float | None:
    """Under the first evaluation that the cell asks for: the one at the size that it was trained for."""
    found = [attack["accuracy"] for attack in record.get("attacks", {}).values() if attack["checkpoint"] == place]
    return found[0] if found else None


def _value(found: list[float], known: Target | None, column: str, error: bool) -> Value:
    deviation = statistics.stdev(found) if len(found) > 1 else None
    published = None if known is None else known.values.get(column)
    return Value(statistics.mean(found), deviation, published, error)


def _told(value: Value | None) -> str:
    if value is None:
        return "-"
    return str(value) if value.published is None else f"{value} (published {value.published:.2f}, {value.gap:+.1f})"


def _seeds(row: Row) -> str:
    return str(row.seeds) if not row.failed else f"{row.seeds}, {row.failed} diverged"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
