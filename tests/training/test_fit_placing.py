"""Data that do not fit on the device stay where they are: batches are sent, the numbers are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import Small, small_task

import resolvent.data.loader as loader
from resolvent.attacks import Threat
from resolvent.training import FitSettings, fit, pgd_at
from resolvent.training import run as home
from resolvent.training.step import batches

BATCH = 16


def history(track_test: bool = False) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    settings = FitSettings(epochs=2, batch_size=BATCH, lr=0.02, track_test=track_test)
    made = fit(Small(), small_task(), pgd_at(Threat("linf", 0.1, (0.0, 1.0)), steps=2), settings)
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in made.rows]
    return [*rows, made.summary]


@pytest.mark.parametrize("track_test", [False, True])
def test_training_from_afar(monkeypatch: pytest.MonkeyPatch, track_test: bool) -> None:
    near = history(track_test)
    sizes: list[int] = []

    def counted(value: torch.Tensor, device: torch.device) -> torch.Tensor:
        sizes.append(len(value))
        return value.to(device)

    for module in (loader, home):
        monkeypatch.setattr(module, "fits", lambda split, device: False)
    for module in (loader, batches):
        monkeypatch.setattr(module, "send_to", counted)
    assert history(track_test) == near
    assert len(sizes) > 3 * 2 * len(small_task().train) // BATCH  # x, y and index of every batch
    assert max(sizes) <= BATCH


@pytest.mark.parametrize("track_test", [False, True])
def test_only_what_is_used_often_is_moved(monkeypatch: pytest.MonkeyPatch, track_test: bool) -> None:
    task, seen = small_task(), []
    names = {id(split.x): name for name, split in task.splits().items()}

    def asking(split: Any, device: torch.device) -> bool:
        seen.append(names[id(split.x)])
        return True

    monkeypatch.setattr(home, "fits", asking)
    home.place_task(task, torch.zeros(1), track_test)
    assert seen == ["train", "validation", *(["test"] if track_test else [])]
