"""`resolvent attack`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Attack:
    """Attack a classifier with a list of attacks and print its accuracy after each, with everything that casts doubt.

    Exit status: 0 done, 2 bad usage, 130 stopped by Ctrl-C.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a training run or a saved model, or anybody's package.module:Class (path/to/file.py:Class)."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a training run."""
    preset: str = "standard"
    """standard, qi2024, plus, rand or fast."""
    norm: Literal["linf", "l2", "l1"] = "linf"
    """How the size of a perturbation is measured."""
    eps: str = "8/255"
    """The largest size, a number or a fraction."""
    bounds: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """The valid range of an input value; that of the task when left out."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """A task by name (its test split) or a file (.npz, .safetensors, .csv, .tsv, .parquet, .ts); else the run's own."""
    samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Only the first so many."""
    batch_size: int = 256
    """At most so many samples pass through the model at once."""
    seed: int = 0
    """Where random numbers start."""
    kwargs: str = "{}"
    """Arguments of that class as JSON."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """A folder that keeps every finished batch and record.json: a stopped attack goes on from there."""

    def execute(self) -> int:
        from resolvent import assess

        return assess.run(self)
