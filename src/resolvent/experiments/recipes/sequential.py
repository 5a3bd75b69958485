"""MNIST pixel by pixel, standard training: a test of long memory.

A digit is 784 steps of one grey value; nothing is grouped into patches. Settings are ours. Full size is for one GPU,
small for two CPU cores and a quarter of an hour. The checkpoint is chosen by validation; the test split is measured on
that one and on the last.
"""

from __future__ import annotations

from typing import Any

from resolvent.experiments.cell import Budget, Cell, TaskChoice
from resolvent.experiments.recipes.size import Size
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    LRUConfig,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    S5Config,
)
from resolvent.models.layer_config import LayerConfig

RING = (0.9, 0.999, 0.314)  # radii for memories of ten to a thousand steps, slow phases


def smnist(size: Size = "full") -> list[Cell]:
    """Sequential MNIST, 784 pixels one by one, standard training: S4D, S5 and LRU; the small size is S5 alone."""
    shared: dict[str, Any] = {"weight_decay": 0.01, "warmup": 1.0, "clip": 1.0, "choose": "clean"}
    if size == "small":
        return [_cell("s5", _model(S5Config(64), 32, 2), Budget(epochs=10, batch_size=50, lr=4e-3, **shared))]
    own = shared | {"weight_decay": 0.05, "ssm_lr": 4e-3}
    budget = Budget(epochs=12, batch_size=128, lr=8e-3, precision="bf16", track_test=True, **own)
    layers: dict[str, LayerConfig] = {"s4d": S4DConfig(64), "s5": S5Config(128), "lru": LRUConfig(128, *RING)}
    return [_cell(name, _model(layer, 128, 4), budget) for name, layer in layers.items()]


def _model(layer: LayerConfig, width: int, layers: int) -> ModelConfig:
    """Pre-norm blocks of the layer and S5's half-GLU, the mean over time, one linear map."""
    block = ResidualConfig(layer, mixer="half_glu1")
    return ModelConfig(ChannelsConfig(1), block, ClassifierConfig(10, "mean"), width, layers, final_norm=True)


def _cell(name: str, model: ModelConfig, budget: Budget) -> Cell:
    return Cell("smnist", (name, "mnist"), model, TaskChoice("mnist"), budget=budget)
