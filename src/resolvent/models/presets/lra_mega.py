"""Mega's Long Range Arena settings: the released architectures and run commands of facebookresearch/mega.

On retrieval the released head uses only [e1, e2]; ours is the arena's [e1, e2, e1 * e2, e1 - e2].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resolvent.blocks.norm import NormKind
from resolvent.models.config import MegaConfig, ModelConfig
from resolvent.models.presets.lra_task import LENGTHS, Task, lra_head, lra_input
from resolvent.models.presets.recipe import TrainConfig


@dataclass(frozen=True)
class _Row:
    layers: int
    d_model: int
    z: int
    hidden: int
    norm: NormKind
    dropout: float
    lr: float
    weight_decay: float
    batch: int
    steps: int
    warmup: int
    attention: Literal["softmax", "laplace"] = "softmax"


_TABLE: dict[Task, _Row] = {
    "listops": _Row(6, 80, 64, 160, "layer", 0.1, 0.001, 0.01, 64, 90_000, 3_000),
    "text": _Row(4, 128, 64, 256, "scale", 0.1, 0.004, 0.01, 50, 25_000, 10_000),
    "retrieval": _Row(6, 128, 64, 256, "scale", 0.1, 0.003, 0.04, 64, 91_960, 10_000),
    "image": _Row(8, 160, 96, 320, "batch", 0.0, 0.01, 0.02, 50, 180_000, 9_000, "laplace"),
    "pathfinder": _Row(6, 128, 64, 256, "batch", 0.0, 0.01, 0.01, 128, 250_000, 50_000, "laplace"),
    "pathx": _Row(4, 64, 32, 128, "batch", 0.0, 0.01, 0.01, 128, 125_000, 25_000, "laplace"),
}


def mega(task: Task, vocab: int | None = None, chunk: int | None = None) -> ModelConfig:
    """Mega for one task; the paper's Mega has no chunk, its Mega-chunk has chunk=128 (4096 on Path-X)."""
    row = _TABLE[task]
    images = row.attention == "laplace"  # the image tasks are pre-norm, too
    block = MegaConfig(
        z=row.z,
        hidden=row.hidden,
        ffn=row.hidden,
        attention=row.attention,
        chunk=chunk,
        max_length=LENGTHS[task],
        bidirectional=True,
    )
    return ModelConfig(
        input=lra_input(task, vocab, std=row.d_model**-0.5),
        block=block,
        head=lra_head(task, hidden=row.hidden),
        d_model=row.d_model,
        layers=row.layers,
        norm=row.norm,
        prenorm=images,
        final_norm=images,
        dropout=row.dropout,
    )


def mega_training(task: Task) -> TrainConfig:
    """Adam with (0.9, 0.98), linear decay to zero, gradients clipped at 1."""
    row = _TABLE[task]
    return TrainConfig(
        row.lr,
        row.weight_decay,
        row.batch,
        steps=row.steps,
        warmup=row.warmup,
        groups=False,
        optimiser="adam",
        betas=(0.9, 0.98),
        schedule="linear",
        clip=1.0,
    )
