"""`resolvent certify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from resolvent.commands.new_data import FileOptions, NewFile, SampleOptions, Samples
from resolvent.commands.run.train_options import option


@dataclass(frozen=True)
class Certify:
    """Bound a model's gain, certify its predictions, and print the certified beside the attacked accuracy.

    Exit status: 0 certified, 1 the model has no finite bound (the component that breaks it is named), 2 bad usage.
    """

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "sizes": ("eps_raw", "bounds", "bounds_raw", "tolerance"),
        "how it runs": ("checkpoint", "noise_samples", "seed"),
    }

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a saved model or of a run."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a run."""
    norm: Literal["l2", "linf", "l1"] = "l2"
    """How the size of a perturbation is measured."""
    eps: Annotated[tuple[str, ...] | None, option("SIZE ...")] = None
    """The size to certify in the units of the model, a number or a fraction; 0.5 when left out. Several make a curve.
    With a value for each channel (0.1,0.1,0.5) the largest is certified, and the attack keeps to each."""
    eps_raw: Annotated[tuple[str, ...] | None, option("SIZE ...")] = None
    """The same in the units of the file that the run was trained on."""
    bounds: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The valid range of an input value, or of each channel; that of the task when left out."""
    bounds_raw: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The same in the units of the file that the run was trained on."""
    tolerance: Annotated[float | None, option("ERROR")] = None
    """Of a model with real outputs: the error (root mean square over a sample's outputs) that may not be exceeded."""
    preset: str = "fast"
    """The attack to compare the certificate with; none to leave it out."""
    smoothing: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Also certify the model smoothed by normal noise of this deviation (L2): the way for models without a bound."""
    noise_samples: int = 1000
    """Noisy copies of each sample, for --smoothing."""
    seed: int = 0
    """Where random numbers start."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write everything to this file."""
    on: Samples = field(default_factory=SampleOptions)
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        from resolvent.commands.certify.execute import run

        return run(self)
