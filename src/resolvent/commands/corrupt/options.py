"""`resolvent corrupt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.commands.run.train_options import Rule, option


@dataclass(frozen=True)
class Corrupt:
    """Try a trained model on corrupted data: noise, drift, tones, clipping, silent channels and spans, jitter, another
    sampling rate, warped time; five severities of each, and the mean corruption error.

    $ resolvent corrupt runs/train/mine-s4d-standard/seed-0

    With a run, the numbers are kept in its folder and `resolvent report` shows them beside attacks and certificates.

    Exit status: 0 done, 2 bad usage, 130 stopped by Ctrl-C.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a training run, or of a saved model."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a run."""
    only: Annotated[tuple[str, ...], option("NAME ...")] = ()
    """Some of noise, drift, tone, clipping, channels, spans, jitter, rate, warping; all of them when left out."""
    baseline: Annotated[Path | None, option("RUN")] = None
    """Another run that was corrupted: the error is told relative to its, too."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """A task by name (its test split) or a file; else the run's own."""
    label: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """--data: the column of a table that holds the answers; as in training when left out."""
    missing: Annotated[Rule | None, tyro.conf.arg(metavar="{refuse,zero,mean,ffill,flag}")] = None
    """--data: how missing values are filled; as in training when left out."""
    header: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """--data: the first line of a CSV is a sample, not the names of the columns."""
    samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Only the first so many."""
    batch_size: int = 256
    """At most so many samples pass through the model at once."""
    seed: int = 0
    """Where random numbers start."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""

    def execute(self) -> int:
        from resolvent.commands.corrupt import execute

        return execute.run(self)
