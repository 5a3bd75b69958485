"""Progress of a check: a bar on a terminal, a line for each finished layer in a log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from resolvent.conformance.result import Result
from resolvent.conformance.runner import Listener


def follow(console: Console, totals: Mapping[str, int]) -> tuple[AbstractContextManager[object], Listener]:
    """A context for the check, and a listener for results; `totals` are the numbers of results per layer."""
    if console.is_terminal:
        return _bar(console, sum(totals.values()))
    return nullcontext(), _lines(console, totals)


def _bar(console: Console, total: int) -> tuple[AbstractContextManager[object], Listener]:
    count, name = TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}")
    progress = Progress(BarColumn(), count, TimeElapsedColumn(), name, console=console, transient=True)
    task = progress.add_task("", total=total)

    def listener(result: Result) -> None:
        progress.update(task, advance=1, description=f"{result.layer} {result.property}")

    return progress, listener


def _lines(console: Console, totals: Mapping[str, int]) -> Listener:
    met: dict[str, list[Result]] = {name: [] for name in totals}
    finished: list[str] = []

    def listener(result: Result) -> None:
        results = met[result.layer]
        results.append(result)
        if len(results) == totals[result.layer]:
            finished.append(result.layer)
            order = f"{len(finished)}/{len(totals)}"
            console.print(f"{order} {_format_results(results)}", soft_wrap=True, highlight=False, markup=False)

    return listener


def _format_results(results: list[Result]) -> str:
    held, failed = (sum(r.status == status for r in results) for status in ("pass", "fail"))
    return f"{results[0].layer}: {held} hold, {failed} fail, {sum(r.seconds for r in results):.1f} s"
