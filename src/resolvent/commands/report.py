"""`resolvent report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Write one HTML page (and Markdown, and CSV) about every run below the folders.

    Exit status: 0 written, 2 bad usage.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS ...]")] = ("runs",)
    """Folders that `resolvent run` wrote, or URLs of an object store (s3://bucket/runs)."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FOLDER|URL")] = None
    """Where to put report.html, report.md and report.csv; into the first folder when left out."""
    title: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    """The page's title."""
    fetch_limit: Annotated[int, tyro.conf.arg(metavar="MIB")] = 1024
    """From a URL, fetch at most so many MiB of settings and records."""

    def execute(self) -> int:
        from resolvent import perform

        perform.report(list(self.runs), self.out, self.title, self.fetch_limit)
        return 0
