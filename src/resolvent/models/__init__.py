"""Whole models: settings, `build_model`, presets of published ones, and checkpoints."""

from resolvent.models import layer_config, presets
from resolvent.models.build import build_model, make_block, make_layer
from resolvent.models.certified import verify_certified
from resolvent.models.checkpoint import load_config, load_into, load_model, save_model
from resolvent.models.components import components_of
from resolvent.models.config import (
    AdSConfig,
    AttentionConfig,
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    GriffinConfig,
    H3Config,
    HawkConfig,
    LanguageConfig,
    LevelsConfig,
    LipschitzConfig,
    MambaConfig,
    MegaConfig,
    ModelConfig,
    RegressionConfig,
    ResidualConfig,
    RetrievalConfig,
    TokensConfig,
)
from resolvent.models.foreign.weights import import_weights
from resolvent.models.layer_config import *  # noqa: F403  # its __all__: the settings of every layer
from resolvent.models.model import Model, TwoTower, count_parameters, optim_groups
from resolvent.models.presets.recipe import TrainConfig
from resolvent.models.reservoir import learn_reservoir, reservoir_config
from resolvent.models.shipped import Card, card, folder_of, pretrained, pretrained_names

__all__ = [
    "AdSConfig", "AttentionConfig", "Card", "CertifiedConfig", "ChannelsConfig", "ClassifierConfig", "GriffinConfig",
    "H3Config", "HawkConfig", "LanguageConfig", "LevelsConfig", "LipschitzConfig", "MambaConfig", "MegaConfig", "Model",
    "ModelConfig", "RegressionConfig", "ResidualConfig", "RetrievalConfig", "TokensConfig", "TrainConfig", "TwoTower",
    "build_model", "card", "components_of", "count_parameters", "folder_of", "import_weights", "learn_reservoir",
    "load_config", "load_into", "load_model", "make_block", "make_layer", "optim_groups", "presets", "pretrained",
    "pretrained_names", "reservoir_config", "save_model", "verify_certified",
]  # fmt: skip
__all__ += layer_config.__all__


def __dir__() -> list[str]:
    return sorted(__all__)
