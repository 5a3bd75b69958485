"""A finished run of a small model on a user's own file, and commands on it in this process, with what they print."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from resolvent import cli

SMALL = ("--layer", "lru", "--width", "4", "--layers", "1", "--epochs", "2", "--batch-size", "16", "--eps", "0.05")


@dataclass(frozen=True)
class Said:
    status: int | str  # the exit status, or the exception that came through
    out: str
    err: str

    @property
    def bad(self) -> bool:
        """Whether a user saw something that nobody should."""
        return self.status not in (0, 1, 2) or "Traceback" in self.err


class Cases(Protocol):
    """Numbered cases that count their outcomes and keep what went wrong."""

    wrong: list[Any]
    outcomes: Counter[Any]

    def case(self, number: int) -> None: ...


def run_cases(make: Callable[[Path], Cases], count: int, first: int, limit: float) -> dict[str, Any]:
    """As many cases as `limit` seconds allow, at most `count`, in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        began, made, number = time.perf_counter(), make(Path(folder)), first
        while number < first + count and time.perf_counter() - began < limit:
            made.case(number)
            number += 1
        return {"first": first, "cases": number - first, "wrong": made.wrong,
                "outcomes": dict(sorted(made.outcomes.items())),
                "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


def call(*arguments: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            status: int | str = cli.main(list(arguments))
        except BaseException as wrong:  # whatever it is, a command may not let it through
            status = f"{type(wrong).__name__}: {wrong}"
    return Said(status, out.getvalue(), err.getvalue())


class Scene:
    """runs/ is what commands see and may damage, good/ what was written; `restore` makes them equal again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "mine.npz"
        self.runs, self.good = folder / "runs", folder / "good"
        rng = np.random.default_rng(0)
        x = rng.uniform(size=(60, 5, 2)).astype(np.float32)
        np.savez(self.data, x=x, y=(x.mean((1, 2)) > 0.5).astype(np.int64))
        np.savez(folder / "other.npz", x=x[::-1].copy(), y=np.arange(60) % 2)

    def train(self, *more: str) -> Said:
        return call("run", "train", "--data", str(self.data), "--out", str(self.runs), "--no-report", *SMALL, *more)

    def keep(self) -> None:
        """What is there now is good."""
        shutil.rmtree(self.good, ignore_errors=True)
        shutil.copytree(self.runs, self.good)

    def restore(self) -> None:
        good = {p.relative_to(self.good): p for p in self.good.rglob("*")}
        for path in sorted(self.runs.rglob("*"), reverse=True):
            name = path.relative_to(self.runs)
            if name not in good or path.is_symlink() or path.is_dir() != good[name].is_dir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, path in sorted(good.items()):
            here = self.runs / name
            if path.is_dir():
                here.mkdir(parents=True, exist_ok=True)
            elif not here.is_file() or here.stat().st_mtime_ns != path.stat().st_mtime_ns:
                shutil.copy2(path, here)

    @property
    def run(self) -> Path:
        return next(self.runs.rglob("cell.json")).parent

    def files(self) -> list[Path]:
        """Of the run, by their names in it."""
        place = next(self.good.rglob("cell.json")).parent
        return sorted(p.relative_to(place) for p in place.rglob("*") if p.is_file())

    def place(self) -> Path:
        return self.runs / next(self.good.rglob("cell.json")).parent.relative_to(self.good)


def timeless(folder: Path) -> dict[str, Any]:
    """The numbers of a record, read by nothing of ours."""
    held: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return {name: value for name, value in held.items() if name not in ("times", "digest")}


def numbers(text: str) -> list[str]:
    """Every number that a command printed, but for those of paths."""
    return re.findall(r"(?<![\w/.-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w/])", re.sub(r"\S*/\S*", "", text))


def fork(work: Any) -> int:
    """Run `work` in a copy of this process and tell how it ended: its status, or minus the signal."""
    child = os.fork()
    if not child:
        try:
            os._exit(work())
        except BaseException:  # the copy must not go on with the tests
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
