"""`resolvent predict`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.commands.new_data import FileOptions, NewFile


@dataclass(frozen=True)
class Predict:
    """Predict new data with a trained model: class names, probabilities, and the accuracy where labels are known.

    $ resolvent predict runs/train/mine-s4d-standard/seed-0 new.csv --out predictions.csv

    The file is scaled and filled as the training data were; columns are found by their names. Labels are optional.

    Exit status: 0 done, 2 bad usage.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, of one of its checkpoints, or of a saved model."""
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A file (.csv, .tsv, .parquet, .ts, .npz, .safetensors), or a task by name: its test split."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv")] = None
    """Write every prediction, with the probability of each class, to this file."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a run."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        from resolvent.commands.predict.execute import run

        return run(self)
