"""A bar for each attack."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from resolvent.attacks.autoattack.rounds import Listener


def progress_bar(console: Console) -> tuple[AbstractContextManager[Any], Listener | None]:
    """A bar per attack on a terminal; nothing otherwise."""
    if not console.is_terminal:
        return nullcontext(), None
    count, name = TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}")
    progress = Progress(name, BarColumn(), count, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    tasks: dict[str, Any] = {}

    def listener(attack: str, done: int, total: int) -> None:
        if attack not in tasks:
            tasks[attack] = progress.add_task(attack, total=total)
        progress.update(tasks[attack], completed=done)

    return progress, listener
