"""`resolvent log`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from resolvent.report.log import TensorBoardLog, WandbLog

PAUSE = 2.0  # seconds between checks of followed runs


@dataclass(frozen=True)
class Log:
    """Write the curves of runs for TensorBoard or Weights & Biases: after they end, or with --follow while they train.

    $ resolvent log runs --to tensorboard
    $ resolvent log runs/train --to wandb --project gait --follow

    Every number of metrics.jsonl at its step, the settings, and what was found in the end (accuracies of the best and
    the last epoch, under each attack). Called again it replaces what it wrote. Needs the extra `tensorboard`
    or `wandb`.

    Exit status: 0 written, 2 bad usage; --follow ends with Ctrl-C (130).
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS ...]")] = (Path("runs"),)
    """Folders that `resolvent run` or `fit` wrote, each of one run or of many."""
    to: Literal["tensorboard", "wandb"] = "tensorboard"
    """Which tracker to write for."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where files go; RUNS/tensorboard or RUNS/wandb of the first folder when left out."""
    project: Annotated[str, tyro.conf.arg(metavar="NAME")] = "resolvent"
    """The project in Weights & Biases."""
    offline: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Weights & Biases: write to the folder only; `wandb sync` sends it later."""
    follow: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Keep looking for new epochs and new runs until stopped."""

    def execute(self) -> int:
        from resolvent.commands.trouble import as_usage_errors
        from resolvent.report.log import Follower
        from resolvent.usage.error import UsageError

        self._check()
        with as_usage_errors(str(self.runs[0])):
            log = self._open()
            try:
                follower = Follower(list(self.runs), log)
                count = follower.update()
                if not count and not self.follow:
                    places = ", ".join(map(str, self.runs))
                    raise UsageError(f"no run in {places} has finished an epoch; --follow waits for one.")
                print(f"{count} run{'s' * (count != 1)} written; {log.where()}", flush=True)
                while self.follow:
                    time.sleep(PAUSE)
                    follower.update()
            finally:
                log.close()
        return 0

    def _check(self) -> None:
        from resolvent.experiments.store.objects import is_url
        from resolvent.usage.error import UsageError

        for run in self.runs:
            if is_url(str(run).replace(":/", "://", 1)):  # a Path keeps only one slash of ://
                raise UsageError(f"log reads folders of this machine, got {str(run)!r}; copy the runs here first.")
        if self.to == "tensorboard" and (self.offline or self.project != "resolvent"):
            raise UsageError("--offline and --project are of Weights & Biases; leave them out, or say --to wandb.")

    def _open(self) -> TensorBoardLog | WandbLog:
        from resolvent.report.log import TensorBoardLog, WandbLog
        from resolvent.usage.destination import require_writable

        out = self.out or self.runs[0] / self.to
        if self.out is not None or self.runs[0].is_dir():
            require_writable(out / "events", "--out")
        return TensorBoardLog(out) if self.to == "tensorboard" else WandbLog(out, self.project, self.offline)
