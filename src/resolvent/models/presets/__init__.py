"""Published models as functions that return a ModelConfig, with their training settings."""

from resolvent.models.presets.generalisation import selective_block, selective_training
from resolvent.models.presets.l2ru import l2ru_classifier, l2ru_stack, l2ru_training, lru_classifier
from resolvent.models.presets.lra import lra, lra_training
from resolvent.models.presets.lra_mega import mega, mega_training
from resolvent.models.presets.lru_stack import lru_stack
from resolvent.models.presets.recipe import TrainConfig
from resolvent.models.presets.robustness import robustness, robustness_training

__all__ = [
    "TrainConfig", "l2ru_classifier", "l2ru_stack", "l2ru_training", "lra", "lra_training", "lru_classifier",
    "lru_stack", "mega", "mega_training", "robustness", "robustness_training", "selective_block", "selective_training",
]  # fmt: skip
