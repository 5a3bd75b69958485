"""Settings: choices with the nearest name, JSON there and back."""

from __future__ import annotations

import json

import pytest

from resolvent.disk import first_difference
from resolvent.models import (
    AdSConfig,
    ChannelsConfig,
    MambaConfig,
    ModelConfig,
    ResidualConfig,
    S5Config,
    TokensConfig,
    presets,
)
from resolvent.models.settings import from_dict, to_dict


def test_bad_choices_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'batch'"):
        ModelConfig(norm="bach")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'half_glu1'"):
        ResidualConfig(mixer="halfglu1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'sigmoid'"):
        AdSConfig("sigmoyd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'mamba'"):
        presets.robustness("mambo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'listops'"):
        presets.lra("s4", "list_ops")  # type: ignore[arg-type]


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="layers"):
        ModelConfig(layers=0)
    with pytest.raises(ValueError, match="d_model"):
        ModelConfig(d_model=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dropout"):
        ModelConfig(dropout=1.0)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(),
        ModelConfig(TokensConfig(9), MambaConfig(), ads=AdSConfig("tanh", True)),
        presets.robustness("mega", "mnist"),
        presets.lra("s5", "pathx"),
        presets.lru_stack(2, 3),
        presets.selective_block("majority", abscissa=0.1),
    ],
)
def test_json_there_and_back(config: ModelConfig) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(config))), ModelConfig) == config


def test_unknown_and_missing_fields_are_named() -> None:
    data = to_dict(ModelConfig())
    with pytest.raises(ValueError, match="did you mean 'd_model'"):
        from_dict(data | {"dmodel": 3}, ModelConfig)
    with pytest.raises(ValueError, match="did you mean 'ResidualConfig'"):
        from_dict(data | {"block": {"class": "ResidualConfg"}}, ModelConfig)
    with pytest.raises(ValueError, match="'vocab'"):
        from_dict(data | {"input": {"class": "TokensConfig"}}, ModelConfig)


def test_difference_is_found_by_path() -> None:
    a = to_dict(ModelConfig(block=ResidualConfig(S5Config(8))))
    b = to_dict(ModelConfig(block=ResidualConfig(S5Config(16))))
    assert first_difference(a, b) == ("block.layer.d_state", 8, 16)
    assert first_difference(a, a) is None
    other = to_dict(ModelConfig(ChannelsConfig(3)))
    assert first_difference(to_dict(ModelConfig()), other) == ("input.channels", 1, 3)
