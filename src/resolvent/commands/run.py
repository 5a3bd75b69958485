"""`resolvent run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Run:
    """Run a recipe (see `resolvent list`), or `train` on your own data; a stopped run goes on when called again.

    $ resolvent run quickstart
    $ resolvent run qi2024-table1 --only s4,cifar10,trades --device cuda
    $ resolvent run train --data mine.npz --layer s5 --objective trades --eps 0.1

    Exit status: 0 done, 1 a run diverged, 2 bad usage, 130 stopped by Ctrl-C.
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A recipe's name, or train."""
    only: Annotated[str, tyro.conf.arg(metavar="TAG,TAG")] = ""
    """Tags that a cell must carry, e.g. s4,cifar10,trades."""
    size: Annotated[Literal["full", "small"] | None, tyro.conf.arg(metavar="{full,small}")] = None
    """As published, or for two cores; the recipe's own choice when left out."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = ()
    """One run of each cell for every seed; the recipe's own when left out."""
    out: Annotated[str, tyro.conf.arg(metavar="FOLDER|URL")] = "runs"
    """The folder of results, or a URL (s3://bucket/runs); workers that share it take cells that nobody else runs."""
    workers: int = 1
    """Processes on this machine that share the cells; small models train quickest with one for each core."""
    device: str = "cpu"
    """Where to compute, e.g. cuda."""
    precision: Annotated[Literal["float32", "bf16"] | None, tyro.conf.arg(metavar="{float32,bf16}")] = None
    """Of training, the recipe's own when left out; measurements and attacks are in float32 always."""
    evaluate_every: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Epochs between measurements; the recipe's own when left out."""
    attack_batch: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Samples that pass through the model at once in an attack; the recipe's own when left out."""
    dry_run: bool = False
    """Only tell what would run, with an estimate of time and memory."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Leave out the page that is written when everything is done."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")] = "digits"
    """train: a task's name, or a file (.npz, .safetensors, .csv, .tsv, .parquet, .ts)."""
    test: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """train: another file of that kind, all of it for the test."""
    label: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """train: the column of a table that holds the answers; label, class, target or y when left out."""
    header: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """train: the first line of a CSV is a sample, not the names of the columns; the label comes first."""
    missing: Literal["refuse", "zero", "ffill", "flag"] = "refuse"
    """train: fill missing values of a file by 0, by the last value, or by that with a channel that tells."""
    scale: Literal["none", "standard", "minmax"] = "none"
    """train: scale the channels of a file by its training part."""
    layer: Annotated[str, tyro.conf.arg(metavar="NAME")] = "s4d"
    """train: the layer, or a whole block such as mamba."""
    objective: Literal["standard", "pgd-at", "trades"] = "standard"
    """train: what to minimise."""
    norm: Literal["linf", "l2", "l1"] = "linf"
    """train: the norm of the attack."""
    eps: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """train: the size of the attack, a number or a fraction such as 8/255; none when left out."""
    epochs: int = 20
    """train: passes over the data."""
    batch_size: int = 64
    """train: samples of a step."""
    lr: float = 4e-3
    """train: the learning rate."""
    width: int = 64
    """train: channels of the model."""
    layers: int = 4
    """train: blocks of the model."""

    def execute(self) -> int:
        from resolvent import perform

        return perform.run(self)
