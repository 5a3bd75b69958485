"""`resolvent run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import tyro

from resolvent.commands.run.train_options import DataOptions, ModelOptions, TrainingOptions, option


@dataclass(frozen=True)
class Run:
    """Run a recipe (see `resolvent list`), or `train` on your own data; called again, a stopped run resumes.

    $ resolvent run quickstart
    $ resolvent run qi2024-table1 --only s4,cifar10,trades --device cuda
    $ resolvent run train --data mine.npz --layer s5 --objective trades --eps 0.1

    Exit status: 0 done, 1 a run diverged, 2 bad usage, 124 budget spent, 130 Ctrl-C (143 SIGTERM, 129 hang-up).
    """

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "runs": ("seeds", "name", "overwrite", "workers", "on", "cell_cpus", "cell_gpus", "budget", "report"),
        "how it runs": ("precision", "evaluate_every", "attack_batch", "keep_points", "evidence", "commit"),
    }

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A recipe's name, or train (data, model and training options)."""
    only: Annotated[str | None, option("TAG,TAG")] = None
    """Only runs of the recipe that carry these tags, e.g. s4,cifar10,trades."""
    size: Annotated[Literal["full", "small"] | None, option("SIZE")] = None
    """full (as published) or small (for two cores); the recipe's own when left out."""
    seeds: Annotated[tuple[int, ...], option("SEED ...")] = ()
    """One run of each cell for every seed; the recipe's own when left out."""
    out: Annotated[str, tyro.conf.arg(metavar="FOLDER")] = "runs"
    """Where results go: a folder, or a URL such as s3://bucket/runs."""
    name: Annotated[str | None, option("NAME")] = None
    """train: the run's name below the folder; else made of data, model, objective and settings that differ."""
    overwrite: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Remove what earlier calls left of these runs, and start again."""
    workers: int = 1
    """Processes on this machine that share the cells, e.g. one for each core; several may share one GPU."""
    on: Annotated[str | None, option("ray[://ADDRESS]")] = None
    """Distribute cells over a Ray cluster: ray://HOST:PORT, or ray://auto for the one on this machine.
    ray alone is the cluster that RAY_ADDRESS names, else a local Ray while the command runs."""
    cell_cpus: Annotated[int | None, option("INT")] = None
    """With --on: CPUs of a cell, and its threads; one when left out."""
    cell_gpus: Annotated[float | None, option("SHARE")] = None
    """With --on: GPUs of a cell, 0.25 if four may share one; with --device cuda one when left out."""
    device: str = "cpu"
    """Where to compute, e.g. cuda."""
    precision: Annotated[Literal["float32", "bf16"] | None, option("{float32,bf16}")] = None
    """Of training; the recipe's own when left out. Evaluation and attacks always use float32."""
    evaluate_every: Annotated[int | None, option("INT")] = None
    """Epochs between evaluations; the recipe's own when left out."""
    attack_batch: Annotated[int | None, option("INT")] = None
    """Samples that pass through the model at once in an attack; the recipe's own when left out."""
    budget: Annotated[float | None, option("SECONDS")] = None
    """Stop after this many seconds and say what is left; the same command resumes and reaches the same numbers."""
    keep_points: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Keep the attacked points of every batch after the run; else only the results for every sample are kept."""
    evidence: Annotated[str | None, option("FOLDER")] = None
    """Write a small file to commit for each run that ends: recipe, tags, seed, commit, command, numbers."""
    commit: Annotated[str, tyro.conf.arg(metavar="COMMIT")] = ""
    """With --evidence: the commit that runs."""
    dry_run: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Only print what would run, with its time and memory."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Leave out the page that is written when everything is done."""
    source: Annotated[DataOptions, tyro.conf.arg(name="data")] = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def execute(self) -> int:
        from resolvent.commands.run import cells as run_cells

        return run_cells.run(self)
