"""The settings of a reservoir: one S4D layer of many small systems, and shares above levels."""

from __future__ import annotations

from resolvent.layers.checks import check_positive
from resolvent.models.config import ChannelsConfig, LevelsConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig

MODES = 4  # oscillations of a system


def reservoir_config(channels: int, classes: int, systems: int = 250, levels: int = 8) -> ModelConfig:
    """For `build_model`, whose weights `learn_reservoir` then replaces.

    Examples:
        >>> rv.models.reservoir_config(3, 5, systems=50).d_model
        50
    """
    check_positive("reservoir_config", channels=channels, classes=classes, systems=systems, levels=levels)
    block = ResidualConfig(S4DConfig(2 * MODES, skip=False), mixer="none", activation="none", skip=False)
    entry, head = ChannelsConfig(channels, bias=False), LevelsConfig(classes, levels)
    return ModelConfig(entry, block, head, systems, 1, norm="none")
