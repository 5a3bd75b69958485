"""S4-PTD's Long Range Arena settings: the released configurations of AnnanYu/Approximate_Diagonal.

S4-PTD is S4D with `init="ptd"`. The released layer keeps 64 complex states, from a LegS matrix of size 64 and a
complex E; ours keeps one of each conjugate pair of the same size (32 complex states), which is the same system.
"""

from __future__ import annotations

from dataclasses import dataclass

from resolvent.blocks.norm import NormKind
from resolvent.models.config import ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig
from resolvent.models.presets.lra_task import Task, lra_head, lra_input
from resolvent.models.presets.recipe import TrainConfig


@dataclass(frozen=True)
class _Row:
    layers: int
    d_model: int
    norm: NormKind
    prenorm: bool
    lr: float
    weight_decay: float
    batch: int
    epochs: int
    dropout: float = 0.0
    ssm_lr: float = 1e-3
    dt_min: float = 1e-3
    dt_max: float = 1e-1


_TABLE: dict[Task, _Row] = {
    "listops": _Row(8, 256, "batch", False, 0.002, 0.05, 50, 80, ssm_lr=4e-4, dt_max=1.0),
    "text": _Row(6, 256, "batch", True, 0.01, 0.05, 16, 80),
    "retrieval": _Row(6, 128, "batch", True, 0.004, 0.03, 64, 40),
    "image": _Row(6, 128, "layer", False, 0.01, 0.01, 128, 2000, dropout=0.1),
    "pathfinder": _Row(6, 256, "batch", True, 0.004, 0.03, 64, 300),
    "pathx": _Row(6, 128, "batch", True, 0.001, 0.03, 20, 100, dt_min=1e-4),
}  # where the release does not say pre- or post-norm (retrieval, Pathfinder, Path-X), as S4


def s4_ptd(task: Task, vocab: int | None = None) -> ModelConfig:
    """S4-PTD for one task."""
    row = _TABLE[task]
    layer = S4DConfig(64, "ptd", dt_min=row.dt_min, dt_max=row.dt_max, bidirectional=True)
    return ModelConfig(
        input=lra_input(task, vocab),
        block=ResidualConfig(layer, mixer="glu", activation="gelu"),
        head=lra_head(task),
        d_model=row.d_model,
        layers=row.layers,
        norm=row.norm,
        prenorm=row.prenorm,
        final_norm=row.prenorm,
        dropout=row.dropout,
    )


def s4_ptd_training(task: Task) -> TrainConfig:
    """How that model was trained; 2000 epochs on Image are a cap."""
    row = _TABLE[task]
    return TrainConfig(row.lr, row.weight_decay, row.batch, row.epochs, ssm_lr=row.ssm_lr)
