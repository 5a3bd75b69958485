"""A progress bar for long operations; silent unless on a terminal."""

from __future__ import annotations

from typing import Any


class Counter:
    """A rich bar on standard error, also usable as pooch's download progress bar."""

    def __init__(self, text: str, total: float | None = None, bytes_: bool = False) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        done: Any = DownloadColumn() if bytes_ else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
        self._shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._row = self._shown.add_task(text, total=total)
        self.total = total

    def __enter__(self) -> Counter:
        self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.stop()

    def update(self, size: float) -> None:
        self._shown.update(self._row, total=self.total, advance=size)

    def reset(self) -> None:
        self._shown.reset(self._row)

    def close(self) -> None:
        self._shown.stop()
