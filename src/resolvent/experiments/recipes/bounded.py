"""The certifiable model for your own data: `resolvent run train --certified [--gamma G]`."""

from __future__ import annotations

import math
from dataclasses import replace

from resolvent.data import Task
from resolvent.models import ModelConfig, RegressionConfig
from resolvent.models.presets import l2ru_classifier, lru_classifier

GAMMA = 3.0  # the Lipschitz bound when none is given
MEMORY = 64  # states per channel: number of steps that the pooling stores without loss
POOLED = 2048  # most entries of the pooled vector
PRESETS = {"l2ru": l2ru_classifier, "lru": lru_classifier}


def bounded_model(task: Task, layer: str, gamma: float | None, width: int, layers: int) -> ModelConfig:
    """A model with Lipschitz constant `gamma` that fits the task: a classifier with a hidden layer of 4 `width`, or
    for real targets `width` channels and a linear readout."""
    gamma = GAMMA if gamma is None else gamma
    if layer not in PRESETS:
        raise ValueError(f"run: --certified builds a model of l2ru or lru layers, got --layer {layer}; leave it out.")
    if not 0 < gamma < math.inf:
        raise ValueError(f"run: --gamma, the Lipschitz bound of the model, must be positive and finite, got {gamma}.")
    if task.vocabulary is not None:
        raise ValueError(f"run: --certified is for real-valued sequences, and {task.name} has tokens.")
    channels = task.channels or 1
    if task.classes is None:
        like = PRESETS[layer](channels, gain=gamma, memory=2, d_model=max(channels, width), layers=layers)
        return replace(like, head=regression_head(task))
    d_model = max(channels, min(2 * channels, 16))
    memory = min(MEMORY, _even(task.length), _even(POOLED // d_model - 1))
    return PRESETS[layer](
        channels, task.classes, gain=gamma, memory=memory, d_model=d_model, layers=layers, hidden=4 * width
    )


def regression_head(task: Task) -> RegressionConfig:
    """A head for values per sample or per step, like the targets; a forecast reads the end of the series."""
    shape = task.train.y.shape
    if len(shape) == 3:
        return RegressionConfig(shape[2], "none")
    return RegressionConfig(shape[1] if len(shape) == 2 else 1, "mean" if task.horizon is None else "last")


def _even(number: int) -> int:
    """The next even number, at least 2."""
    return max(2, number + number % 2)
