"""`resolvent bench`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from resolvent.commands.new_data import FileOptions, NewFile


@dataclass(frozen=True)
class Bench:
    """Time layers on this machine: forward, backward, one step, memory; beside the same layers in plain torch.

    With RUN it times that trained model instead: reading raw data, predicting, a step, the gradient of an attack.

    $ resolvent bench
    $ resolvent bench runs/train/mine-s4d-standard/seed-0 --data new.csv
    $ resolvent bench --layer s5 --length 16384 --batch 1
    $ resolvent bench --device cuda --batch 64 --json bench.json

    Without --layer it takes about two minutes. Each measurement runs in a process of its own; run it alone, since a
    busy core distorts short times. Comparisons with other projects' packages are in the repository's benchmarks/
    (make bench).

    Exit status: 0 measured, 1 a layer's values disagree with its plain version (which is then not timed), 2 bad usage.
    """

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {"how it runs": ("threads",)}

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """The folder of a run, of one of its checkpoints, or of a saved model."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """RUN: a task's test split, or a file with or without labels; the run's own test samples when left out."""
    layer: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """One of s4, s4d, dss, ema, s5, lru, l2ru, s6, rglru; all of them when left out."""
    batch: int = 8
    """Sequences at once."""
    length: int = 1024
    """Steps of a sequence."""
    d_model: int = 64
    """Channels."""
    d_state: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """States, where the layer has that choice; its own default when left out."""
    device: str = "cpu"
    """Where to compute, e.g. cuda."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Threads of a CPU; as many as torch takes when left out."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write everything to this file."""
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        if self.run is not None:
            from resolvent.commands.bench.trained import run as time_trained

            return time_trained(self)
        from resolvent.commands.bench.execute import run

        return run(self)
