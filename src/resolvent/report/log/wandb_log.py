"""Rows of runs as runs of Weights & Biases, by its own client (extra `wandb`), on its server or offline in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resolvent.report.log.tracked import Row, Tracked, scalars
from resolvent.report.page import MissingPackage


class WandbLog:
    """A run has one id per path and settings: logging again continues it, skipping existing steps."""

    def __init__(self, out: Path, project: str = "resolvent", offline: bool = False) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingPackage("log needs wandb; install with: pip install 'resolvent[wandb]'") from None
        self._wandb, self.out, self.project, self.offline = wandb, out, project, offline
        self._open: dict[str, Any] = {}

    def begin(self, run: Tracked) -> None:
        if run.name in self._open:
            self._open.pop(run.name).finish()
        self.out.mkdir(parents=True, exist_ok=True)
        own: dict[str, Any] = {"mode": "offline"} if self.offline else {}
        with self._in_words():
            self._open[run.name] = self._wandb.init(
                project=self.project,
                name=run.name,
                id=run.key,
                resume="allow",
                reinit="create_new",
                config=run.settings,
                dir=str(self.out),
                **own,
            )

    def add(self, run: Tracked, rows: tuple[Row, ...]) -> None:
        with self._in_words():
            for row in rows:
                self._open[run.name].log(scalars(row), step=int(row["step"]))

    def finish(self, run: Tracked) -> None:
        with self._in_words():
            self._open[run.name].summary.update(run.found)

    def close(self) -> None:
        with self._in_words():
            for each in self._open.values():
                each.finish()
        self._open.clear()

    def where(self) -> str:
        return f"`wandb sync {self.out}/wandb/offline-*` sends them" if self.offline else f"project {self.project}"

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Report the client's errors (no key, no network, a bad project) in one line."""
        try:
            yield
        except self._wandb.errors.Error as wrong:
            message = " ".join(str(wrong).split())
            raise ValueError(f"log: wandb says: {message}; --offline writes to a folder instead.") from wrong
