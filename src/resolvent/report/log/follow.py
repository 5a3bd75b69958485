"""Forwards new rows of runs to a log."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from resolvent.report.log.tracked import Row, Tracked, read_tracked


class Log(Protocol):
    """A tracker: `begin` a run, `add` its rows, `finish` it with its results, finally `close`."""

    def begin(self, run: Tracked) -> None: ...
    def add(self, run: Tracked, rows: tuple[Row, ...]) -> None: ...
    def finish(self, run: Tracked) -> None: ...
    def close(self) -> None: ...


class Follower:
    """Forwards each row once, in order. A run whose first rows or settings have changed was overwritten and restarts;
    a resumed run may write the same rows again, which are skipped."""

    def __init__(self, folders: list[Path], log: Log) -> None:
        self.folders, self.log = folders, log
        self._seen: dict[Path, Tracked] = {}

    def update(self) -> int:
        """Forward what is new; returns the number of runs."""
        runs = read_tracked(self.folders)
        for run in runs:
            self._hand_over(run, self._seen.get(run.folder))
            before = self._seen.get(run.folder)
            if before is None or len(run.rows) >= len(before.rows) or not _continues(before, run):
                self._seen[run.folder] = run
        return len(runs)

    def _hand_over(self, run: Tracked, before: Tracked | None) -> None:
        if before is None or not _continues(before, run):
            self.log.begin(run)
            before = None
        new = run.rows[len(before.rows) if before else 0 :]
        if new:
            self.log.add(run, new)
        if run.found and (before is None or run.found != before.found):
            self.log.finish(run)


def _continues(before: Tracked, run: Tracked) -> bool:
    """Whether one starts with the rows of the other: after a kill the file may be shorter for a while."""
    both = min(len(before.rows), len(run.rows))
    return before.settings == run.settings and before.rows[:both] == run.rows[:both]
