"""A report as rich tables: properties down, layers across, the largest error in each cell."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resolvent.conformance.result import Report, Result

COLUMN = 10  # characters that one layer's column takes
LABEL = 22  # and the properties' names


def show(report: Report, console: Console) -> None:
    """Print the table, split if the terminal is too narrow, and a line per failure."""
    names = report.layers
    fit = max(1, (console.width - LABEL) // COLUMN)
    for start in range(0, len(names), fit):
        console.print(_table(report, names[start : start + fit]))
    for failure in report.failures:
        console.print(_failure(failure), soft_wrap=True)
    console.print(_summary(report))


def cell(result: Result | None) -> str:
    """The error to one digit; ok if exact; a dash if the property does not apply."""
    if result is None or result.status == "n/a" or result.error is None:
        return "–"
    if result.status == "pass" and result.error == 0:
        return "ok"
    return f"{result.error:.0e}" if math.isfinite(result.error) else "broken"


def _table(report: Report, names: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", min_width=LABEL - 2, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", min_width=6, no_wrap=True)
    for prop in report.properties:
        row = [report.worst(name, prop) for name in names]
        table.add_row(prop, *(Text(cell(r), style=_style(r)) for r in row))
    return table


def _style(result: Result | None) -> str:
    if result is None or result.status == "n/a":
        return "dim"
    return "green" if result.status == "pass" else "bold red"


def _failure(result: Result) -> Text:
    where = f"{result.layer} [{result.case}]" if result.case else result.layer
    line = Text.assemble(("FAIL ", "bold red"), (f"{where} {result.property}: ", "bold"))
    if result.error is not None and math.isfinite(result.error):
        line.append(f"{result.error:.2e} is more than {result.tolerance:.0e}. ")
    return line.append(result.note)


def _summary(report: Report) -> Text:
    passed = sum(r.status == "pass" for r in report.results)
    failed = len(report.failures)
    seconds = sum(r.seconds for r in report.results)
    dtype = report.settings.get("dtype", "")
    layers = f"{len(report.layers)} layer{'s' * (len(report.layers) != 1)}"
    message = f"{passed} hold, {failed} fail, {layers}, {dtype}, {seconds:.0f} s"
    return Text(message, style="bold green" if report.ok else "bold red")
