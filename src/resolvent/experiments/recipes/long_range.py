"""The Long Range Arena, as a lecture on structured state-space models tabulates it, with the rows of PTD's authors.

S4, S4D (LegS, Inv and Lin apart), S5, LRU, S4-PTD, S5-PTD and the Transformer run at their published settings. For S6
and RG-LRU the lecture gives numbers but no settings: here they take S4's width, depth and training, in S4's residual
scaffold (`s6`, `rglru`) and in their own (`mamba`, `griffin`). The lecture's taxonomy has more pairs of a scaffold and
a layer: H3 around S4, S5 and LRU, and Mamba's block around RG-LRU. The small size is short ListOps trees and the
embedded digits at a quarter of the width, under names of their own: `listops-50`, `digits`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from resolvent.experiments.cell import Budget, Cell, TaskChoice
from resolvent.experiments.recipes.budgets import budget_of
from resolvent.experiments.recipes.size import Size
from resolvent.init.timestep import time_scales
from resolvent.models import (
    AttentionConfig,
    ChannelsConfig,
    ClassifierConfig,
    GriffinConfig,
    H3Config,
    LRUConfig,
    MambaConfig,
    ModelConfig,
    ResidualConfig,
    RGLRUConfig,
    S4Config,
    S4DConfig,
    S5Config,
    S6Config,
    TokensConfig,
)
from resolvent.models.config import BlockConfig
from resolvent.models.presets import lra as lra_model
from resolvent.models.presets import lra_training
from resolvent.models.presets.lra_task import Task

PUBLISHED: dict[str, Any] = {
    "transformer": "transformer", "s4": "s4", "s5": "s5", "lru": "lru", "s4-ptd": "s4_ptd", "s5-ptd": "s5_ptd"
}  # fmt: skip
VARIANTS: dict[str, Any] = {"s4d-legs": "legs", "s4d-inv": "inv", "s4d-lin": "lin"}
SCAFFOLDED = ("s6", "rglru", "mamba", "griffin", "h3-s4", "h3-s5", "h3-lru", "mamba-rglru")
TASKS: dict[Task, TaskChoice] = {
    "listops": TaskChoice("listops"),
    "text": TaskChoice("imdb"),
    "retrieval": TaskChoice("aan"),
    "image": TaskChoice("cifar10-grey", (("normalise", True),)),
    "pathfinder": TaskChoice("pathfinder", (("normalise", True),)),
    "pathx": TaskChoice("pathx", (("normalise", True),)),
}
COLOUR = TaskChoice("cifar10", (("normalise", True),))  # LRU's Image, as in its paper's code and the table
VOCABULARIES: dict[Task, int] = {"listops": 16, "text": 257, "retrieval": 257}  # text and papers as bytes


def lra(size: Size = "full") -> list[Cell]:
    """The Long Range Arena: a Transformer, S4, S4D, S5, LRU, S4-PTD, S5-PTD; S6 and RG-LRU in several scaffolds."""
    names = (*PUBLISHED, *VARIANTS, *SCAFFOLDED)
    if size == "small":
        return [small(name, task) for name in names for task in ("listops-50", "digits")]
    return [cell(name, task) for name in names for task in get_args(Task) if (name, task) != ("transformer", "pathx")]


def cell(name: str, task: Task) -> Cell:
    """One entry of the table."""
    family = PUBLISHED.get(name, "s4d" if name in VARIANTS else "s4")
    own: dict[str, Any] = {"init": VARIANTS[name]} if name in VARIANTS else {}
    model, training = lra_model(family, task, vocab=VOCABULARIES.get(task), **own), lra_training(family, task)
    if name in SCAFFOLDED:
        model = _set_block(model, scaffold(name))
    choice = COLOUR if (name, task) == ("lru", "image") else TASKS[task]
    return Cell("lra", (name, task), model, choice, budget=budget_of(training, choose="clean"))


def _set_block(model: ModelConfig, block: BlockConfig) -> ModelConfig:
    """S4's model with another block; Mamba, Griffin and H3 blocks have their own pre-norms."""
    if isinstance(block, ResidualConfig):
        assert isinstance(model.block, ResidualConfig)
        return replace(model, block=replace(model.block, layer=block.layer))
    norm: Any = "layer" if isinstance(block, H3Config) else "rms"
    return replace(model, block=block, norm=norm, prenorm=True, final_norm=True)


def scaffold(name: str, **steps: Any) -> BlockConfig:
    """The block of that name; `steps` are the time steps of layers that have them."""
    blocks: dict[str, BlockConfig] = {
        "s6": ResidualConfig(S6Config(**steps)),
        "rglru": ResidualConfig(RGLRUConfig()),
        "mamba": MambaConfig(),
        "griffin": GriffinConfig(),
        "h3-s4": H3Config(layer=S4Config(**steps)),
        "h3-s5": H3Config(layer=S5Config(**steps)),
        "h3-lru": H3Config(layer=LRUConfig()),
        "mamba-rglru": MambaConfig(layer=RGLRUConfig()),
    }
    return blocks[name]


def small(name: str, task: str) -> Cell:
    """The same comparison in minutes: ListOps of about 50 tokens, and the digits."""
    image = task == "digits"
    model = ModelConfig(
        ChannelsConfig(1) if image else TokensConfig(16),
        _small_block(name, 64 if image else 55),
        ClassifierConfig(10, "mean"),
        d_model=32,
        layers=3 if name == "griffin" else 2,  # its third block is attention
        final_norm=True,
    )
    choice = TaskChoice("digits") if image else TaskChoice("listops", (("around", 50), ("samples", 2000)))
    return Cell("lra", (name, task), model, choice, budget=Budget(10, 64, 4e-3, warmup=1.0, clip=1.0, choose="clean"))


def _small_block(name: str, length: int) -> BlockConfig:
    if name == "transformer":
        return AttentionConfig(bidirectional=True)
    steps = time_scales(S4Config, length)
    if name in SCAFFOLDED:
        return scaffold(name, **steps)
    kinds: dict[str, Any] = {"s4": S4Config, "s5": S5Config, "s5-ptd": S5Config, "lru": LRUConfig}
    kind = kinds.get(name, S4DConfig)
    start = {} if name in ("s4", "s5", "lru") else {"init": VARIANTS.get(name, "ptd")}
    return ResidualConfig(kind(**start, **time_scales(kind, length)))
