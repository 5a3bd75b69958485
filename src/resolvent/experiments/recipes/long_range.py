"""The Long Range Arena, as a lecture on structured state-space models tabulates it, with the rows of PTD's authors.

S4, S4D, S5, LRU, S4-PTD and S5-PTD run at their published settings. For S6 and RG-LRU the lecture gives numbers but no
settings: here they take S4's width, depth and training in the same residual scaffold, which is our choice.
The small size is short ListOps trees and the embedded digits at a quarter of the width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from resolvent.experiments.cell import Budget, Cell, TaskChoice
from resolvent.experiments.recipes.size import Size
from resolvent.experiments.train import time_scales
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    LRUConfig,
    ModelConfig,
    ResidualConfig,
    RGLRUConfig,
    S4Config,
    S4DConfig,
    S5Config,
    S6Config,
    TokensConfig,
)
from resolvent.models.presets import TrainConfig, lra_training
from resolvent.models.presets import lra as lra_model
from resolvent.models.presets.lra_task import Task

PUBLISHED: dict[str, Any] = {
    "s4": "s4", "s4d": "s4d", "s5": "s5", "lru": "lru", "s4-ptd": "s4_ptd", "s5-ptd": "s5_ptd"
}  # fmt: skip
OURS: dict[str, Any] = {"s6": S6Config, "rglru": RGLRUConfig}
TASKS: dict[Task, TaskChoice] = {
    "listops": TaskChoice("listops"),
    "text": TaskChoice("imdb"),
    "retrieval": TaskChoice("aan"),
    "image": TaskChoice("cifar10-grey"),
    "pathfinder": TaskChoice("pathfinder"),
    "pathx": TaskChoice("pathx"),
}
VOCABULARIES: dict[Task, int] = {"listops": 16, "text": 257, "retrieval": 257}  # text and papers are read as bytes


def lra(size: Size = "full") -> list[Cell]:
    """The Long Range Arena: S4, S4D, S5, LRU, S6, RG-LRU, S4-PTD and S5-PTD on its six tasks."""
    if size == "small":
        return [small(name, task) for name in ("s4", "s4d", "s5", "lru", *OURS) for task in ("listops", "image")]
    return [cell(name, task) for name in (*PUBLISHED, *OURS) for task in get_args(Task)]


def cell(name: str, task: Task) -> Cell:
    """One entry of the table."""
    family = PUBLISHED.get(name, "s4")
    model, training = lra_model(family, task, vocab=VOCABULARIES.get(task)), lra_training(family, task)
    if name in OURS:
        assert isinstance(model.block, ResidualConfig)
        model = replace(model, block=replace(model.block, layer=OURS[name]()))
    return Cell("lra", (name, task), model, TASKS[task], budget=budget(training))


def budget(training: TrainConfig) -> Budget:
    """Their training in our terms; what a paper counts in steps would need the size of its data."""
    return Budget(
        epochs=training.epochs or 1,
        batch_size=training.batch,
        lr=training.lr,
        ssm_lr=training.ssm_lr,
        weight_decay=training.weight_decay,
        warmup=float(training.warmup),
        clip=training.clip,
        groups=training.groups,
        choose="clean",
    )


def small(name: str, task: str) -> Cell:
    """The same comparison in minutes: ListOps of about 50 tokens, and the digits."""
    kinds: dict[str, Any] = {"s4": S4Config, "s4d": S4DConfig, "s5": S5Config, "lru": LRUConfig} | OURS
    length = 64 if task == "image" else 55
    layer = kinds[name](**time_scales(kinds[name], length))
    image = task == "image"
    model = ModelConfig(
        ChannelsConfig(1) if image else TokensConfig(16),
        ResidualConfig(layer),
        ClassifierConfig(10, "mean"),
        d_model=32,
        layers=2,
        final_norm=True,
    )
    choice = TaskChoice("digits") if image else TaskChoice("listops", (("around", 50), ("samples", 2000)))
    return Cell("lra", (name, task), model, choice, budget=Budget(10, 64, 4e-3, warmup=1.0, clip=1.0, choose="clean"))
