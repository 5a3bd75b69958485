"""`resolvent analyse`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from resolvent.commands.new_data import FileOptions, NewFile


@dataclass(frozen=True)
class Analyse:
    """Analyse a trained model, a preset or a bare initialisation: spectra, responses, kernels, conditioning.

    $ resolvent analyse runs/quickstart/s4-digits-trades/seed-0
    $ resolvent analyse --preset robustness:s4,cifar10
    $ resolvent analyse --init s4d-legs --n 64 --figures out/figures

    Exit status: 0 written, 2 bad usage.
    """

    target: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """The folder of a run or of a saved model."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME:ARGUMENTS")] = None
    """A preset with its arguments, e.g. robustness:s4,cifar10 or lra:s4d,image."""
    init: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """legs, s4d-legs, s4d-lin, s4d-inv, s4d-real or ptd."""
    n: int = 64
    """--init: the number of states."""
    contours: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """--init: leave out pseudospectra, the slowest part for many states."""
    attribution: bool = False
    """A run's folder: also which component damps or spreads the attack that the run was measured by."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """--attribution on a task's test split or a new file, preprocessed as the run's own data, instead of these."""
    out: Path = Path("out/analysis")
    """The folder for analysis.html and analysis.json."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the numbers to this file."""
    figures: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Also write every figure to this folder, as SVG and as PDF."""
    seed: int = 0
    """The seed of a preset's weights."""
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        from resolvent.commands.analyse.execute import run

        return run(self)
