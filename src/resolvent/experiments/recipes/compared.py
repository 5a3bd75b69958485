"""Models of about one size on the embedded digits: four state-space models, a GRU, a CNN and a linear map.

docs/runs.md tells how their settings were found, on validation only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    GRUConfig,
    MambaConfig,
    ModelConfig,
    ResidualConfig,
    S4Config,
    S5Config,
    ShortConvConfig,
)
from resolvent.models.config import BlockConfig, Pooling
from resolvent.models.presets import l2ru_classifier

SCALES: dict[str, Any] = {"dt_min": 1e-2, "dt_max": 0.2}  # memories of five steps to beyond the 64
TAPS = 16  # two rows of an image


@dataclass(frozen=True)
class Compared:
    """A model and its training settings."""

    model: ModelConfig
    lr: float = 1e-2
    weight_decay: float = 2e-4
    epochs: int = 15  # of standard training


def make_compared() -> dict[str, Compared]:
    """By name; between 4,800 and 13,300 parameters each."""
    return {
        "s4": Compared(_stack(ResidualConfig(S4Config(32, **SCALES), mixer="linear"))),
        "s5": Compared(_stack(ResidualConfig(S5Config(32, **SCALES), mixer="linear"))),
        "mamba": Compared(_stack(MambaConfig(d_state=4, width=TAPS), width=20)),
        "l2ru": Compared(l2ru_classifier(gain=5.0, d_model=1, layers=1, hidden=64), 5e-3, 0.0, 25),
        "gru": Compared(_stack(ResidualConfig(GRUConfig(TAPS), mixer="linear"), width=24)),
        "cnn": Compared(_stack(ResidualConfig(ShortConvConfig(17, bidirectional=True), mixer="linear"), 32, "max")),
        "linear": Compared(linear()),
    }


def _stack(block: BlockConfig, width: int = 32, pooling: Pooling = "last") -> ModelConfig:
    """Two pre-norm blocks on one channel, read at the last step by default."""
    return ModelConfig(ChannelsConfig(1), block, ClassifierConfig(10, pooling), width, 2, final_norm=True)


def linear(width: int = 64, length: int = 64) -> ModelConfig:
    """Just a linear map of the 64 pixels: `width` weighted sums of all steps, then the ten logits."""
    block = ResidualConfig(ShortConvConfig(length), mixer="none", activation="none", skip=False)
    return ModelConfig(ChannelsConfig(1, bias=False), block, ClassifierConfig(10, "last"), width, 1, norm="none")
