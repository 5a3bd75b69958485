"""The LRU stack of the structured state-space lectures, for system identification.

y_0 = E u,    y_i = sigma_i(g_i(y_{i-1})) + y_{i-1},    y = H y_r                         no norm, no biases in E, H
"""

from __future__ import annotations

from resolvent.blocks.mixer import MixerKind
from resolvent.models.config import ChannelsConfig, ModelConfig, RegressionConfig, ResidualConfig
from resolvent.models.layer_config import LRUConfig


def lru_stack(
    inputs: int = 1, outputs: int = 1, *, d_model: int = 16, d_state: int = 16, layers: int = 2,
    sigma: MixerKind = "glu", radius: tuple[float, float] = (0.9, 1.0),
) -> ModelConfig:  # fmt: skip
    """`sigma` is the static map after each recurrence: a GLU of GELU features, or "mlp"; `radius` the initial ring."""
    return ModelConfig(
        input=ChannelsConfig(inputs, bias=False),
        block=ResidualConfig(LRUConfig(d_state, *radius), mixer=sigma, activation="gelu_tanh"),
        head=RegressionConfig(outputs, "none", bias=False),
        d_model=d_model,
        layers=layers,
        norm="none",
    )
