"""The record behind Figures 3 and 4: the numbers of `attribution`, on both splits, per layer and averaged, in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from resolvent.analysis import attribution, attribution_record
from resolvent.attacks import PGD, Draws, Threat
from resolvent.data import Split, load_task
from resolvent.models import (
    AdSConfig,
    ChannelsConfig,
    ClassifierConfig,
    ModelConfig,
    ResidualConfig,
    S4Config,
    build_model,
    components_of,
)
from resolvent.report.figures.contribution import attribution_bars

THREAT = Threat("linf", 0.15, (0.0, 1.0))


def small(layers: int = 2) -> Any:
    torch.manual_seed(0)
    config = ModelConfig(
        ChannelsConfig(1),
        ResidualConfig(S4Config(4), mixer="linear"),
        ClassifierConfig(10, "last"),
        d_model=6,
        layers=layers,
        ads=AdSConfig("relu"),
    )
    return build_model(config)


def record(**options: Any) -> tuple[Any, dict[str, Any]]:
    model, task = small(), load_task("digits")
    splits = {"train": task.train, "test": task.test}
    return model, attribution_record(model, splits, THREAT, components_of(model), samples=12, **options)


def test_it_holds_what_attribution_finds_on_each_split() -> None:
    model, found = record(seed=4)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["norm"], found["eps"], found["attack"]) == ("linf", pytest.approx(0.15), "pgd-10")
    assert found["samples"] == {"train": 12, "test": 12}
    assert [component["name"] for component in found["components"]] == ["ssm", "ads", "linear"]
    test = load_task("digits").test
    x, y = test.x[:12], test.y[:12]
    x_adv = PGD(steps=10)(model, x, y, THREAT, draws=Draws.of(x, 4)).x_adv
    want = attribution(model, x, x_adv, components_of(model))
    for component in found["components"]:
        mine, known = component["test"], want[component["name"]]
        assert (mine["mse"], mine["kl"]) == (known.mse.mean, known.kl.mean)
        assert [layer["where"] for layer in mine["layers"]] == [change.where for change in known.mse.layers]
        assert mine["mse"] == pytest.approx(math.fsum(layer["mse"] for layer in mine["layers"]) / 2)
        assert component["train"] != mine


@pytest.mark.slow
def test_padding_stays_out() -> None:
    """What lies beyond a sample's length may be anything."""
    model, test = small(), load_task("digits").test
    x, lengths = test.x[:6].clone(), torch.tensor([64, 10, 30, 64, 5, 17])
    lines = []
    for filling in (0.0, 1.0):
        x[torch.arange(64) >= lengths[:, None]] = filling
        split = {"test": Split(x.clone(), test.y[:6], lengths)}
        lines.append(attribution_record(model, split, THREAT, components_of(model)))
    for a, b in zip(lines[0]["components"], lines[1]["components"], strict=True):
        assert a["test"]["mse"] == pytest.approx(b["test"]["mse"], rel=1e-4)  # a sign of the attack may flip


@pytest.mark.slow
def test_bars_are_the_averages_of_the_record() -> None:
    _, found = record()
    bars = attribution_bars(found, "kl")
    assert [row[0] for row in bars] == ["ssm", "ads", "linear"]
    assert bars[0][1:] == (found["components"][0]["train"]["kl"], found["components"][0]["test"]["kl"])


def test_a_change_without_meaning_is_left_out_of_the_bars() -> None:
    model, test = small(), load_task("digits").test
    splits = {"train": test, "test": test}
    record = attribution_record(model, splits, Threat("linf", 0.0), components_of(model), samples=3)
    assert "agree" in record["components"][0]["test"]["layers"][0]["reason"]
    assert attribution_bars(record) == []


def test_no_split_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one split"):
        attribution_record(small(), {}, THREAT, {"ssm": ["x"]})
