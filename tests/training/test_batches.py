"""Batches made ahead are the batches of their step, and a bf16 run is measured in float32."""

from __future__ import annotations

from dataclasses import replace

import torch

from resolvent.attacks import Threat
from resolvent.data import load_task
from resolvent.models import build_model
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig
from resolvent.training import FitSettings, fit, pgd_at
from resolvent.training.measure import measure
from resolvent.training.settings import Probe
from resolvent.training.step.batches import Batches


def test_a_batch_made_ahead_is_the_batch_of_its_step() -> None:
    split = load_task("digits").head(50).train
    ahead, plain = Batches(split, 16, 3), Batches(split, 16, 3)
    for step in range(8):  # two epochs, whose last batch is smaller
        got, want = ahead.at(step), plain.at(step)
        ahead.prepare(step + 1)
        assert torch.equal(got.x, want.x)
        assert torch.equal(got.y, want.y)
        assert torch.equal(got.draws.bits(0, 0), want.draws.bits(0, 0))
    assert torch.equal(ahead.at(2).x, plain.at(2).x)  # and any other step is there as ever


def test_measurements_are_in_the_precision_of_the_parameters() -> None:
    torch.manual_seed(0)
    task, threat = load_task("digits").head(12), Threat("linf", 0.1, (0, 1))
    block = ResidualConfig(S4DConfig(4), "linear")
    model = build_model(ModelConfig(ChannelsConfig(task.channels or 1), block, ClassifierConfig(10, "mean"), 8, 1))
    settings = FitSettings(epochs=1, batch_size=12, precision="bf16", probe=Probe(threat))
    history = fit(model, task, pgd_at(threat, steps=2), replace(settings, track_test=True))
    want = measure(model, task.test, Probe(threat), 12)
    assert {name: history.last[f"test_{name}"] for name in want} == want
    with torch.autocast("cpu", torch.bfloat16):
        assert measure(model, task.test, Probe(threat), 12)["loss"] != want["loss"]
