"""`resolvent corrupt`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.commands.new_data import FileOptions, NewFile, SampleOptions, Samples
from resolvent.commands.run.train_options import option


@dataclass(frozen=True)
class Corrupt:
    """Test a trained model on corrupted data: nine corruptions at five severities, and the mean corruption error.

    Noise, drift, tones, clipping, silent channels, silent spans, jitter, another sampling rate, warped time.

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
    """Another corrupted run: also print the error relative to its error."""
    batch_size: int = 256
    """At most this many samples pass through the model at once."""
    seed: int = 0
    """Where random numbers start."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""
    on: Samples = field(default_factory=SampleOptions)
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        from resolvent.commands.corrupt import execute

        return execute.run(self)
