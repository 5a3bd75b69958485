"""A plugin of pytest that writes down each test as it begins and as it ends, so that a run cut short loses no name.

    python -m pytest tests/gpu -n 14 -p benchmarks.gpu.outcomes --outcomes out/tests.txt

A line is `began`, `passed`, `failed` or `skipped`, seconds, who ran it, and its name; lines that begin with two spaces
say why one failed. Tests that --done, a copy of such a file, holds an end of are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENDS = "passed", "failed", "skipped"
WHY = 12  # lines of a traceback


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--outcomes", type=Path, help="file that every test is added to")
    parser.addoption("--done", type=Path, help="such a file: the tests that have ended there are left out")


def pytest_configure(config: Any) -> None:
    out = config.getoption("outcomes")
    if out is not None and not hasattr(config, "workerinput"):  # workers report to the one process that writes
        config.pluginmanager.register(Writer(out), "outcomes-writer")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    done = config.getoption("done")
    if done is None or not done.exists():
        return
    ended = {name for outcome, name in read(done) if outcome in ENDS}
    gone = [item for item in items if item.nodeid in ended]
    items[:] = [item for item in items if item.nodeid not in ended]
    config.hook.pytest_deselected(items=gone)


def read(file: Path) -> list[tuple[str, str]]:
    """(outcome, name) of every line."""
    lines = [line.split(" ", 3) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(words[0], words[3]) for words in lines if words[0] in (*ENDS, "began")]


class Writer:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.failed: set[str] = set()
        out.parent.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add(f"began - - {nodeid}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of its three phases one that failed, or was skipped, says how a test ended; else the last."""
        name, who = report.nodeid, getattr(report, "worker_id", "main")
        if report.outcome == "failed":
            self.failed.add(name)
            why = str(report.longrepr).strip().splitlines()[-WHY:]
            self._add(f"failed {report.duration:.1f} {who} {name}", *(f"  {line}" for line in why))
        elif report.outcome == "skipped":
            self._add(f"skipped {report.duration:.1f} {who} {name}")
        elif report.when == "call" and name not in self.failed:
            self._add(f"passed {report.duration:.1f} {who} {name}")

    def _add(self, *lines: str) -> None:
        with self.out.open("a", encoding="utf-8") as file:  # closed at once: whoever ends the run finds it written
            file.write("\n".join(lines) + "\n")
