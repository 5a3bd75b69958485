"""`resolvent report`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

MIB = 2**20


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
    """From a URL, fetch at most this many MiB of settings and records."""

    def execute(self) -> int:
        from resolvent.usage.error import UsageError

        if self.fetch_limit < 1:
            raise UsageError(f"--fetch-limit is in MiB and at least 1, got {self.fetch_limit}")
        place = write_page(self.runs, self.out or self.runs[0], self.title, self.fetch_limit * MIB)
        print(f"The report is at {place}")
        return 0


def write_page(folders: tuple[str, ...], target: str, title: str | None = None, most: int = 1024 * MIB) -> str:
    """Write the page about all runs below `folders` (folders or URLs) to `target`; returns its location."""
    from resolvent.commands.trouble import as_usage_errors
    from resolvent.experiments.store.objects import Objects, is_url
    from resolvent.report import write_report
    from resolvent.usage.destination import require_writable

    with tempfile.TemporaryDirectory(prefix="resolvent-") as scratch:
        place = Path(scratch) / "page" if is_url(target) else Path(target)
        require_writable(place / "report.html", "--out")
        with as_usage_errors(target):
            found = {_local(folder, Path(scratch) / str(i), most): folder for i, folder in enumerate(folders)}
            copies = {copy: origin for copy, origin in found.items() if is_url(origin)}
            page = write_report(list(found), place, title, copies, _warn)
            if is_url(target):
                for made in place.iterdir():
                    Objects(target).send(made, made.name)
    return f"{target}/{page.name}" if is_url(target) else str(page.resolve())


def _warn(line: str) -> None:
    plain = "".join(c if c.isprintable() else "?" for c in line)  # a forged record may contain terminal escapes
    print(f"resolvent report: {plain}", file=sys.stderr)


def _local(folder: str, scratch: Path, most: int) -> Path:
    from resolvent.experiments.store.fetch import fetch_runs
    from resolvent.experiments.store.objects import is_url

    return fetch_runs(folder, scratch, most) if is_url(folder) else Path(folder)
