"""Options of commands that apply a trained model to data: which samples, and how to read a new file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from resolvent.commands.run.train_options import Rule, option

if TYPE_CHECKING:
    from resolvent.predictor.samples import Reading


@dataclass(frozen=True)
class SampleOptions:
    """Which samples to use; the run's own test samples when left out."""

    data: Annotated[str | None, option("NAME|FILE")] = None
    """A task by name (its test split) or a file (.npz, .safetensors, .csv, .tsv, .parquet, .ts); else the run's own."""
    samples: Annotated[int | None, option("INT")] = None
    """Use only the first samples, this many; all of them when left out."""


@dataclass(frozen=True)
class FileOptions:
    """How to read a new file; like the training file when left out."""

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {"new data": ("label", "missing", "header")}

    label: Annotated[str | None, option("COLUMN")] = None
    """The column of a table that holds the labels."""
    missing: Annotated[Rule | None, option("{refuse,zero,mean,ffill,flag}")] = None
    """How missing values are filled."""
    header: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """The first line of a CSV is a sample, not the names of the columns."""

    def reading(self) -> Reading:
        from resolvent.predictor.samples import Reading

        return Reading(self.label, self.missing, None if self.header else False)


Samples = Annotated[SampleOptions, tyro.conf.arg(name="samples")]
NewFile = Annotated[FileOptions, tyro.conf.arg(name="new-file")]
