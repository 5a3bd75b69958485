"""Models with a prescribed gain: classifiers with certified radii of L2RU or normalised LRU layers, and a stack of L2RU
layers to identify systems.

y_0 = E u,    y_i = (y_{i-1} + sigma_i(g_i(y_{i-1}))) / (1 + gamma_i),    y = H y_r,    |E| <= 1, |H| <= gain
"""

from __future__ import annotations

from dataclasses import replace

from resolvent.blocks.certified.residual import Sigma
from resolvent.models.config import (
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    LipschitzConfig,
    ModelConfig,
    RegressionConfig,
)
from resolvent.models.layer_config import L2RUConfig, NormalisedLRUConfig
from resolvent.models.presets.recipe import TrainConfig


def l2ru_classifier(
    channels: int = 1, classes: int = 10, *, gain: float = 3.0, memory: int = 64, d_model: int = 2, layers: int = 2,
    hidden: int = 256,
) -> ModelConfig:  # fmt: skip
    """A classifier with Lipschitz constant `gain`, whose output is read from `memory` states per channel.

    The gain acts as the temperature of the cross-entropy: a radius is a margin divided by it, so a larger gain trades
    radii for accuracy. `memory` should be the number of steps that matter (64 for the digits).
    """
    return ModelConfig(
        input=ChannelsConfig(channels),
        block=LipschitzConfig(L2RUConfig(16, 0.5, trainable_gamma=True), "sandwich"),
        head=ClassifierConfig(classes, "state", hidden=hidden),
        d_model=d_model,
        layers=layers,
        norm="none",
        certified=CertifiedConfig(gain, "lipschitz", memory),
    )


def lru_classifier(
    channels: int = 1,
    classes: int = 10,
    *,
    gain: float = 3.0,
    memory: int = 64,
    d_model: int = 2,
    layers: int = 2,
    hidden: int = 256,
) -> ModelConfig:
    """The same classifier with LRU layers, each scaled to its gain by a bound of its H-infinity norm."""
    like = l2ru_classifier(channels, classes, gain=gain, memory=memory, d_model=d_model, layers=layers, hidden=hidden)
    return replace(like, block=LipschitzConfig(NormalisedLRUConfig(16, 0.5, trainable_gamma=True), "sandwich"))


def l2ru_stack(
    inputs: int = 1, outputs: int = 1, *, gain: float = 1.0, d_model: int = 16, layers: int = 2, sigma: Sigma = "gate"
) -> ModelConfig:  # fmt: skip
    """The stack of the structured state-space lectures with |y| <= gain |u| for every input: no biases anywhere."""
    return ModelConfig(
        input=ChannelsConfig(inputs, bias=False),
        block=LipschitzConfig(L2RUConfig(None, 1.0, trainable_gamma=True), sigma),
        head=RegressionConfig(outputs, "none", bias=False),
        d_model=d_model,
        layers=layers,
        norm="none",
        certified=CertifiedConfig(gain, "gain"),
    )


def l2ru_training() -> TrainConfig:
    """For the digits classifier: Adam without weight decay, thirty epochs."""
    return TrainConfig(lr=1e-2, weight_decay=0.0, batch=128, epochs=30)
