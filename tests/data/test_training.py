"""Tasks of every kind in the training loop: packed, augmented, killed and resumed to the same numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from resolvent.attacks import Threat
from resolvent.data import CropFlip, Split, Task, from_file, load_task
from resolvent.models import build_model
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import LRUConfig
from resolvent.training import FitSettings, fit, pgd_at, standard


def pictures(packed: bool) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (48, 64, 1), generator=generator, dtype=torch.uint8)
    whole = Split(x, torch.arange(48) % 2, None, 255)
    parts = [Split(whole.x[i : i + 16], whole.y[i : i + 16], None, 255) for i in (0, 16, 32)]
    if not packed:
        parts = [part.unpack() for part in parts]
    return Task("pictures", *parts, length=64, channels=1, classes=2, bounds=(0.0, 1.0))  # type: ignore[misc,arg-type]


def model(channels: int = 1, classes: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    block = ResidualConfig(LRUConfig(4))
    return build_model(ModelConfig(ChannelsConfig(channels), block, ClassifierConfig(classes, "mean"), 4, 1))


def trained(task: Task, folder: Path | None = None, epochs: int = 2) -> dict[str, torch.Tensor]:
    network = model(task.channels or 1, task.classes or 2)
    fit(network, task, standard, FitSettings(epochs=epochs, batch_size=5), folder)
    return network.state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(a[name].equal(b[name]) for name in a)


def test_packed_trains_to_the_same_bits() -> None:
    assert same(trained(pictures(True)), trained(pictures(False)))


def test_packed_trains_adversarially() -> None:
    objective = pgd_at(Threat("linf", 0.05, (0, 1)), steps=1)
    settings = FitSettings(epochs=1, batch_size=16)
    rows = [fit(model(), pictures(packed), objective, settings).rows for packed in (True, False)]
    assert rows[0][0]["train_loss"] == rows[1][0]["train_loss"]


def test_augmentation_reaches_the_loop_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(pictures(True), augment=CropFlip(8, 2))
    whole = trained(task, tmp_path / "whole")
    assert not same(whole, trained(pictures(True)))
    home: Any = sys.modules["resolvent.training.fit"]  # the module, not the function of the same name

    class Killed(BaseException): ...

    real, steps = home._step, []

    def stop(run: object) -> None:
        if len(steps) == 5:  # in the middle of the second epoch
            raise Killed
        steps.append(1)
        real(run)

    monkeypatch.setattr(home, "_step", stop)
    with pytest.raises(Killed):
        trained(task, tmp_path / "killed")
    monkeypatch.setattr(home, "_step", real)
    assert same(trained(task, tmp_path / "killed"), whole)
    with pytest.raises(ValueError, match="augment"):
        trained(pictures(True), tmp_path / "killed")  # another task than the folder's


def test_a_users_file_trains(tmp_path: Path) -> None:
    lines = [f"{s},{t},{(s % 2) * 0.5 + t / 100},{'ab'[s % 2]}" for s in range(30) for t in range(s % 4 + 3)]
    (tmp_path / "mine.csv").write_text("id,time,u,label\n" + "\n".join(lines) + "\n")
    task = from_file(tmp_path / "mine.csv", scale="minmax")
    history = fit(model(), task, standard, FitSettings(epochs=1, batch_size=8))
    assert len(history.rows) == 1


def test_generated_tasks_train() -> None:
    task = load_task("sinusoids", length=20, frequencies=(1.0, 8.0), samples=12)
    network = build_model(
        ModelConfig(ChannelsConfig(1), ResidualConfig(LRUConfig(4)), ClassifierConfig(2, "mean"), 4, 1)
    )
    history = fit(network, task, standard, FitSettings(epochs=1, batch_size=4))
    assert len(history.rows) == 1
