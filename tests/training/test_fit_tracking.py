"""What an epoch's row tells besides accuracies: losses under attack, and samples that training has seen."""

from __future__ import annotations

import pytest
import torch
from small_models import Small, small_task

from resolvent.attacks import Threat
from resolvent.training import FitSettings, Probe, fit, measure
from resolvent.training.step.batch import criterion


def test_the_loss_under_attack_is_that_of_the_attacked_samples() -> None:
    task = small_task()
    torch.manual_seed(0)
    model = Small().double().eval()
    split = task.to("cpu", torch.float64).validation
    still = Probe(Threat("linf", 0.0, (0, 1)))
    found = measure(model, split, still)
    assert found["robust_loss"] == pytest.approx(found["loss"], rel=1e-12)  # nothing may move
    assert found["robust"] == found["clean"]
    moved = measure(model, split, Probe(Threat("linf", 0.2, (0, 1))))
    assert moved["robust_loss"] > moved["loss"] == pytest.approx(found["loss"])
    mean = float(criterion(model(split.x), split.y).mean().detach())
    assert found["loss"] == pytest.approx(mean, rel=1e-12)
    assert "robust_loss" not in measure(model, split)


def test_seen_samples_are_measured_when_asked_for() -> None:
    task = small_task()

    def rows(**more: int) -> tuple[dict[str, float], ...]:
        torch.manual_seed(0)
        settings = FitSettings(epochs=2, batch_size=16, lr=1e-2, evaluate_every=2, choose="clean", **more)
        return fit(Small(), task, settings=settings).rows

    plain, tracked = rows(), rows(track_seen=20)
    names = {name for row in tracked for name in row if name.startswith("seen_")}
    assert names == {"seen_loss", "seen_clean"}
    assert "seen_clean" not in tracked[0]  # not a measured epoch
    assert not any(name.startswith("seen_") for row in plain for name in row)
    assert tracked[1]["train_loss"] == plain[1]["train_loss"]  # looking changes nothing
    with pytest.raises(ValueError, match="track_seen must be at least 0"):
        FitSettings(track_seen=-1)


def test_more_than_there_are_means_all() -> None:
    task = small_task()
    torch.manual_seed(0)
    model = Small()
    history = fit(model, task, settings=FitSettings(epochs=1, batch_size=16, choose="clean", track_seen=10_000))
    assert history.rows[0]["seen_clean"] == measure(model, task.train)["clean"]
