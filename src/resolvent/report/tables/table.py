"""A recipe's runs as tables: one row per cell with epochs and parameters, means over seeds with their standard error,
the published value and the difference.

Classifiers have accuracies in per cent; regressions squared errors, where lower is better. They never share a table,
nor do runs on different data.
"""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass

from resolvent.report.escape import csv_text, markdown_cell
from resolvent.report.runs import Record
from resolvent.report.tables.column import Column, columns_of, standard_error
from resolvent.report.targets import Target, target

HEADS = (  # of the CSV
    "recipe", "run", "seeds", "diverged", "what", "unit", "mean", "deviation", "published", "source",
    "standard_error", "n", "preset", "norm", "eps", "epochs", "parameters",
)  # fmt: skip
LEGEND = (
    "± is the standard error of an accuracy on n samples; with several seeds, the mean and the deviation between "
    "them. best: the checkpoint chosen by validation, last: the final one."
)


@dataclass(frozen=True)
class Value:
    """Per cent, or a squared error, over seeds; the deviation needs two, the standard error a number of samples."""

    mean: float
    deviation: float | None
    published: float | None
    error: bool = False
    standard_error: float | None = None

    @property
    def gap(self) -> float | None:
        return None if self.published is None else self.mean - self.published

    @property
    def form(self) -> str:
        return ".3g" if self.error else ".1f"

    @property
    def number(self) -> str:
        return f"{self.mean:{self.form}}"

    @property
    def error_text(self) -> str:
        return "" if self.standard_error is None else f"{self.standard_error:{self.form}}"

    @property
    def deviation_text(self) -> str:
        return "" if self.deviation is None else f"{self.deviation:{self.form}}"

    def __str__(self) -> str:
        own = f"{self.number} ± {self.error_text}" if self.error_text else self.number
        return own + (f" (seeds ± {self.deviation_text})" if self.deviation_text else "")


@dataclass(frozen=True)
class Row:
    name: str
    seeds: int
    failed: int
    values: dict[Column, Value]
    source: str
    epochs: int | None = None
    parameters: int | None = None

    @property
    def seeds_text(self) -> str:
        return f"{self.seeds}" + (f", {self.failed} diverged" if self.failed else "")

    def value(self, kind: str, place: str) -> Value | None:
        """The first of a kind, with any size and number of samples."""
        return next((v for c, v in self.values.items() if (c.kind, c.place) == (kind, place)), None)


@dataclass(frozen=True)
class Table:
    recipe: str
    columns: list[Column]
    rows: list[Row]
    errors: bool = False
    task: str = ""

    @property
    def unit(self) -> str:
        error = "Squared error, summed over the values of a sample (less is better)"
        return error if self.errors else "Accuracy in per cent"

    @property
    def title(self) -> str:
        return f"{self.recipe}, {self.task}" if self.task else self.recipe

    @property
    def published(self) -> bool:
        return any(value.published is not None for row in self.rows for value in row.values.values())

    def markdown(self) -> str:
        heads = ["run", "seeds", "epochs", "parameters", *(markdown_cell(str(column)) for column in self.columns)]
        lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for row in self.rows:
            cells = [_words(row.values.get(column)) for column in self.columns]
            own = [markdown_cell(row.name), row.seeds_text, count(row.epochs), count(row.parameters)]
            lines.append(f"| {' | '.join([*own, *cells])} |")
        return "\n".join(lines)

    def csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(HEADS)
        for row in self.rows:
            for column, value in row.values.items():
                form = ".8g" if value.error else ".4f"  # a small error has no four decimals
                numbers = ["" if v is None else f"{v:{form}}" for v in (value.mean, value.deviation, value.published)]
                unit = "squared error" if self.errors else "per cent"
                head = [csv_text(self.recipe), csv_text(row.name), row.seeds, row.failed, column.what, unit]
                names = [csv_text(column.preset), csv_text(column.norm), _sizes(column)]
                terms = [_number(value.standard_error), column.samples, *names]
                source = csv_text(row.source) if value.published is not None else ""
                writer.writerow([*head, *numbers, source, *terms, row.epochs, row.parameters])
        return buffer.getvalue()


def tables(recipe: str, cells: dict[str, list[Record]]) -> list[Table]:
    """One of the classifiers and one of the regressions of each task, if any."""
    groups: dict[tuple[str, bool], dict[str, list[Record]]] = {}
    for name, held in cells.items():
        task, errors = str(held[0]["task"].get("name", "")), all(_regresses(record) for record in held)
        groups.setdefault((task, errors), {})[name] = held
    several = len({task for task, _ in groups}) > 1
    ordered = sorted(groups.items(), key=lambda item: item[0][1])  # classifiers first
    return [table(recipe, part, errors, task if several else "") for (task, errors), part in ordered]


def table(recipe: str, cells: dict[str, list[Record]], errors: bool = False, task: str = "") -> Table:
    """With the columns that at least one run has."""
    rows = [row(recipe, name, records, errors) for name, records in cells.items()]
    present = {column for each in rows for column in each.values}
    return Table(recipe, sorted(present, key=lambda column: column.order), rows, errors, task)


def row(recipe: str, name: str, records: list[Record], errors: bool = False) -> Row:
    failed = sum("failed" in record for record in records)
    good = [record for record in records if "failed" not in record and _regresses(record) == errors]
    known = target(recipe, tuple(name.split(",")))
    found: dict[Column, list[float]] = {}
    for record in good:
        for column, share in columns_of(record):
            found.setdefault(column, []).append(-share if errors else 100.0 * share)
    values = {column: _value(column, found[column], known, errors) for column in sorted(found, key=lambda c: c.order)}
    source = known.source if known else ""
    return Row(name, len(records), failed, values, source, _one([epochs_of(r) for r in good]), _one([
        r["training"].get("parameters") for r in good]))  # fmt: skip


def epochs_of(record: Record) -> int | None:
    """The number of epochs trained."""
    rows = record["training"].get("rows") or []
    return rows[-1].get("epoch") if rows else None


def _one(values: list[int | None]) -> int | None:
    """The common value of all seeds."""
    return values[0] if values and len(set(values)) == 1 else None


def _regresses(record: Record) -> bool:
    """Whether its scores are minus squared errors, not accuracies."""
    return record["task"].get("classes", 0) is None


def _value(column: Column, found: list[float], known: Target | None, error: bool) -> Value:
    deviation = statistics.stdev(found) if len(found) > 1 else None
    published = None if known is None else known.values.get(column.what)
    mean = statistics.mean(found)
    own = None if error else standard_error(mean / 100, column.samples)  # seeds share their test samples
    return Value(mean, deviation, published, error, None if own is None else 100 * own)


def _words(value: Value | None) -> str:
    if value is None:
        return "-"
    return str(value) if value.published is None else f"{value} (published {value.published:.2f}, {value.gap:+.1f})"


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _sizes(column: Column) -> str:
    """A number, or one per channel separated by spaces."""
    eps = column.eps
    return "" if eps is None else " ".join(map(repr, eps)) if isinstance(eps, tuple) else repr(eps)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
