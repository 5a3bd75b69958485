"""Whole models: settings, `build_model`, presets of published ones, and checkpoints."""

from resolvent.models import presets
from resolvent.models.build import build_model, make_block, make_layer
from resolvent.models.certified import verify_certified
from resolvent.models.checkpoint import load_config, load_into, load_model, save_model
from resolvent.models.components import components_of
from resolvent.models.config import (
    AdSConfig,
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    GriffinConfig,
    H3Config,
    HawkConfig,
    LipschitzConfig,
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
    L2RUConfig,
    LRUConfig,
    NormalisedLRUConfig,
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
    "CertifiedConfig",
    "ChannelsConfig",
    "ClassifierConfig",
    "DSSConfig",
    "EMAConfig",
    "GriffinConfig",
    "H3Config",
    "HawkConfig",
    "L2RUConfig",
    "LRUConfig",
    "LipschitzConfig",
    "MambaConfig",
    "MegaConfig",
    "Model",
    "ModelConfig",
    "NormalisedLRUConfig",
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
    "verify_certified",
]
