"""`resolvent reduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.commands.run.train_options import option


@dataclass(frozen=True)
class Reduce:
    """Give a trained model fewer states: balanced truncation of its S4D or S5 layers, with a certified error for each.

    $ resolvent reduce runs/train/mine-s4d-standard/seed-0 --error 1e-3

    The output of every layer moves by at most the error times its gain times its input, in L2. The small model is saved
    for attack, certify, corrupt, predict and rv.load; its accuracy, outputs and speed are compared with those of the
    first.

    Exit status: 0 done, 1 nothing to gain within this error, 2 bad usage.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a training run, or of a saved model."""
    error: float = 1e-3
    """How far the output of a layer may move, for an input of norm 1, relative to the layer's largest gain."""
    out: Annotated[Path | None, option("FOLDER")] = None
    """Where the small model goes; RUN/reduced when left out."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a run."""
    samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Compare on the first test samples, this many."""

    def execute(self) -> int:
        from resolvent.commands.reduce import execute

        return execute.run(self)
