"""`resolvent certify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Certify:
    """Bound a saved model's gain, certify its answers, and show them between the certified and the attacked accuracy.

    Exit status: 0 certified, 1 the model has no finite bound (the component that breaks it is named), 2 bad usage.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a saved model or of a run."""
    norm: Literal["l2", "linf", "l1"] = "l2"
    """How the size of a perturbation is measured."""
    eps: str = "0.5"
    """The size to certify, a number or a fraction."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """A task by name (its test split), or a file (.npz, .safetensors, .csv, .parquet, .ts); the run's own data."""
    samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Only the first so many."""
    preset: str = "fast"
    """The attack that the certificate is held against; none to leave it out."""
    smoothing: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Also certify the model smoothed by normal noise of this deviation (L2): the way for models without a bound."""
    noise_samples: int = 1000
    """Noisy copies of each sample, for --smoothing."""
    seed: int = 0
    """Where random numbers start."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write everything to this file."""

    def execute(self) -> int:
        from resolvent import guarantee

        return guarantee.run(self)
