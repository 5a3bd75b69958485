"""Whole models: settings, `build_model`, presets of published ones, and checkpoints."""

from resolvent.models import presets
from resolvent.models.build import build_model, make_block, make_layer
from resolvent.models.checkpoint import load_config, load_into, load_model, save_model
from resolvent.models.components import components_of
from resolvent.models.config import (
    AdSConfig,
    ChannelsConfig,
    ClassifierConfig,
    GriffinConfig,
    H3Config,
    HawkConfig,
    MambaConfig,
    MegaConfig,
    ModelConfig,
    RegressionConfig,
    ResidualConfig,
    RetrievalConfig,
    TokensConfig,
)
from resolvent.models.layer_config import (
    DSSConfig,
    EMAConfig,
    LRUConfig,
    RGLRUConfig,
    S4Config,
    S4DConfig,
    S5Config,
    S6Config,
    ScalarS6Config,
)
from resolvent.models.model import Model, TwoTower, count_parameters, optim_groups
from resolvent.models.presets.recipe import TrainConfig

__all__ = [
    "AdSConfig",
    "ChannelsConfig",
    "ClassifierConfig",
    "DSSConfig",
    "EMAConfig",
    "GriffinConfig",
    "H3Config",
    "HawkConfig",
    "LRUConfig",
    "MambaConfig",
    "MegaConfig",
    "Model",
    "ModelConfig",
    "RGLRUConfig",
    "RegressionConfig",
    "ResidualConfig",
    "RetrievalConfig",
    "S4Config",
    "S4DConfig",
    "S5Config",
    "S6Config",
    "ScalarS6Config",
    "TokensConfig",
    "TrainConfig",
    "TwoTower",
    "build_model",
    "components_of",
    "count_parameters",
    "load_config",
    "load_into",
    "load_model",
    "make_block",
    "make_layer",
    "optim_groups",
    "presets",
    "save_model",
]
