"""One's own run from the command line: any layer on any task or file, with the same stages as the papers' runs."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from resolvent.data import Task
from resolvent.data.prepare import Missing, Scale
from resolvent.experiments.cell import AttackPlan, Budget, Cell, CertifyPlan, TaskChoice
from resolvent.experiments.goal import Goal, Kind, NormName
from resolvent.experiments.tasks import open_task
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, RegressionConfig, ResidualConfig
from resolvent.models import config as blocks
from resolvent.models.layer_config import LayerConfig
from resolvent.models.settings import check_name


@dataclass(frozen=True)
class TrainOptions:
    """What `resolvent run train` takes."""

    data: str = "digits"
    test: str | None = None
    label: str | None = None
    header: bool = True
    missing: Missing = "refuse"
    scale: Scale = "none"
    layer: str = "s4d"
    objective: Kind = "standard"
    norm: NormName = "linf"
    eps: float | None = None
    epochs: int = 20
    batch_size: int = 64
    lr: float = 4e-3
    width: int = 64
    layers: int = 4
    preset: str = "fast"
    samples: int | None = 500
    seed: int = 0


def train_cell(options: TrainOptions) -> tuple[Cell, Task]:
    """The cell, and its task as it was read to learn shapes and classes."""
    choice = task_choice(options)
    task = open_task(choice)
    attack = () if options.eps is None else (_attack(options),)
    budget = Budget(
        epochs=options.epochs,
        batch_size=options.batch_size,
        lr=options.lr,
        warmup=min(1.0, options.epochs / 2),
        clip=1.0,
        evaluate_every=max(1, options.epochs // 10),
        choose="clean" if options.objective == "standard" else "robust",
    )
    cell = Cell(
        "train",
        (_tag(options.data), options.layer, options.objective),
        model_for(task, options.layer, options.width, options.layers),
        choice,
        Goal(options.objective, options.norm, options.eps),
        budget,
        attack if task.vocabulary is None and task.classes is not None else (),
        CertifyPlan(samples=options.samples) if task.vocabulary is None and task.classes is not None else None,
        analyse=True,
        seed=options.seed,
    )
    return cell, task


def _tag(data: str) -> str:
    """A file's or task's name as it goes into a path: what a folder could not carry becomes a dash."""
    return re.sub(r"[^A-Za-z0-9_+.=-]+", "-", Path(data).stem).strip("-.") or "data"


def task_choice(options: TrainOptions) -> TaskChoice:
    """A file where there is one of that name, else a task's name. Only what differs from the usual is written down."""
    data, usual = Path(options.data), TrainOptions()
    asked = {name: getattr(options, name) for name in ("test", "label", "header", "missing", "scale")}
    told = {name: value for name, value in asked.items() if value != getattr(usual, name)}
    if data.suffix or data.exists():
        if "test" in told:
            told["test"] = str(Path(told["test"]).resolve())
        return TaskChoice(data.stem, tuple(told.items()), file=str(data.resolve()))
    if told:
        name = next(iter(told)).replace("header", "no-header")
        raise ValueError(f"run: --{name} is for a file of your own, {options.data!r} is a task; leave it out.")
    return TaskChoice(options.data)


def model_for(task: Task, layer: str, width: int, layers: int) -> ModelConfig:
    """A pre-norm stack of that layer which fits the task's input and answers."""
    kinds = layer_kinds()
    check_name("run train", "layer", layer, kinds)
    made = kinds[layer](**time_scales(kinds[layer], task.length))
    if task.vocabulary is not None:
        entry: Any = blocks.TokensConfig(task.vocabulary)
    else:
        entry = ChannelsConfig(task.channels or 1)
    head = ClassifierConfig(task.classes, "mean") if task.classes is not None else _regression(task)
    block = made if layer in WHOLE else ResidualConfig(made)
    return ModelConfig(entry, block, head, width, layers, final_norm=True)


def time_scales(kind: Any, length: int) -> dict[str, float]:
    """Steps dt for memories from two steps to the whole sequence, where the layer has such a choice."""
    own = {f.name for f in fields(kind)}
    return {"dt_min": min(0.01, 0.64 / length), "dt_max": min(0.5, 64 / length)} if {"dt_min", "dt_max"} <= own else {}


WHOLE = {
    "mamba": blocks.MambaConfig,
    "mega": blocks.MegaConfig,
    "hawk": blocks.HawkConfig,
    "griffin": blocks.GriffinConfig,
    "h3": blocks.H3Config,
}


def layer_kinds() -> dict[str, Any]:
    """Layers by the name of their settings (S4DConfig is s4d), and scaffolds that are whole blocks."""
    own = {kind.__name__.removesuffix("Config").lower(): kind for kind in get_args(LayerConfig)}
    return {name: kind for name, kind in own.items() if _free(kind)} | WHOLE


def _free(kind: Any) -> bool:
    """Whether it can be made without telling it anything."""
    return all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(kind))


def _regression(task: Task) -> RegressionConfig:
    """One value a sample, or a sequence, as the answers are."""
    shape = task.train.y.shape
    if len(shape) == 3:
        return RegressionConfig(shape[2], "none")
    return RegressionConfig(shape[1] if len(shape) == 2 else 1, "mean")


def _attack(options: TrainOptions) -> AttackPlan:
    assert options.eps is not None
    return AttackPlan(options.preset, options.norm, options.eps, options.samples, on=("best", "last"))
