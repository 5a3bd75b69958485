"""On a terminal a progress bar with rate and remaining time below a line per epoch; otherwise only the lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

log = logging.getLogger("resolvent.training")


class Reporter(Protocol):
    def step(self, done: int) -> None: ...

    def tell(self, line: str) -> None: ...


class _Lines:
    def step(self, done: int) -> None:
        return

    def tell(self, line: str) -> None:
        log.info(line)


@contextmanager
def reporter(name: str, total: int) -> Iterator[Reporter]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(name, total=total, rate="")
        shown = progress.tasks[0]

        class Bar:
            def step(self, done: int) -> None:
                speed = shown.finished_speed or shown.speed
                progress.update(task, completed=done, rate="" if speed is None else f"{speed:.3g} steps/s")

            def tell(self, line: str) -> None:
                progress.console.print(line, highlight=False)  # above the bar

        yield Bar()


def format_row(row: dict[str, Any]) -> str:
    """`epoch 3, loss 0.412, validation clean 91.2%, validation robust 40.1%`; squared errors for a regression."""
    words = [f"epoch {row['epoch']}", f"loss {row['train_loss']:.3f}"]
    names = [n for n in row if n.endswith(("_clean", "_robust"))]
    words += [f"{name.replace('_', ' ')} {_score(row[name])}" for name in names]
    return ", ".join(words)


def _score(value: float) -> str:
    """Format an accuracy, or minus a squared error."""
    return f"{value:.1%}" if 0 <= value <= 1 else f"error {-value:.4g}"
