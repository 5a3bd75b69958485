"""The Transformer of the Long Range Arena: the base configurations of google-research/long-range-arena.

Full softmax attention and an MLP, pre-norm, dropout as released. Ours differs in three ways: positions are rotary,
where the arena adds learnt or sinusoidal ones to the input; the output is read from the mean over time, where three
of its tasks read a [CLS] step; and Pathfinder's heads have 32 entries instead of 16. Its learning rates fall with the
square root of the step on texts: ours start at the largest of them and follow a cosine. Path-X is not included: the
arena's Transformer fails there.
"""

from __future__ import annotations

from dataclasses import dataclass

from resolvent.models.config import AttentionConfig, ModelConfig
from resolvent.models.presets.lra_task import Task, lra_head, lra_input
from resolvent.models.presets.recipe import TrainConfig


@dataclass(frozen=True)
class _Row:
    layers: int
    d_model: int
    heads: int
    expand: int
    dropout: float
    lr: float  # peak of the schedule
    weight_decay: float
    batch: int
    epochs: int  # 5,000, 20,000 and 5,000 steps on the texts
    warmup: int = 1


_TABLE: dict[Task, _Row] = {
    "listops": _Row(6, 512, 8, 4, 0.1, 0.05 / 1000**0.5, 0.1, 32, 2),
    "text": _Row(4, 256, 4, 4, 0.1, 0.05 / 8000**0.5, 0.1, 32, 28, 11),
    "retrieval": _Row(4, 128, 4, 4, 0.1, 0.05 * 5000 / 8000**1.5, 0.1, 32, 1),
    "image": _Row(1, 32, 1, 2, 0.3, 5e-4, 0.0, 256, 200),
    "pathfinder": _Row(1, 128, 4, 1, 0.2, 1e-3, 0.0, 512, 200),
}


def transformer(task: Task, vocab: int | None = None) -> ModelConfig:
    """The Transformer for one of the five tasks that it learns."""
    row = _row(task)
    return ModelConfig(
        input=lra_input(task, vocab),
        block=AttentionConfig(row.heads, expand=row.expand, bidirectional=True),
        head=lra_head(task),
        d_model=row.d_model,
        layers=row.layers,
        norm="layer",
        prenorm=True,
        final_norm=True,
        dropout=row.dropout,
    )


def transformer_training(task: Task) -> TrainConfig:
    row = _row(task)
    return TrainConfig(row.lr, row.weight_decay, row.batch, row.epochs, warmup=row.warmup, groups=False)


def _row(task: Task) -> _Row:
    if task not in _TABLE:
        raise ValueError(
            f"lra: the Transformer is not run on {task!r}, where the arena's fails; take {', '.join(_TABLE)}."
        )
    return _TABLE[task]
