"""A batch that does not fit in memory stops the run with the size that would; here a device is imagined."""

from __future__ import annotations

import pytest
import torch
from small_models import Small, small_task
from torch import nn

from resolvent.attacks import Threat, capacity
from resolvent.attacks.capacity import TooMany
from resolvent.training import Batch, FitSettings, Loss, fit, pgd_at, standard


def test_the_batch_size_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = [0]
    monkeypatch.setattr(capacity, "let_go", lambda: None)
    monkeypatch.setattr(capacity, "STREAMS", 0)
    monkeypatch.setattr(capacity, "_room", lambda: 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak[0])
    inner = pgd_at(Threat("linf", 0.1, (0.0, 1.0)), steps=1)

    def heavy(model: nn.Module, batch: Batch) -> Loss:
        if 10 * len(batch) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        peak[0] = 10 * len(batch)
        return inner(model, batch)

    task = small_task()
    with pytest.raises(TooMany, match=r"fit: 16 samples .* batch_size=9,") as told:
        fit(Small(), task, heavy, FitSettings(epochs=1, batch_size=16))
    assert fit(Small(), task, heavy, FitSettings(epochs=1, batch_size=told.value.fits)).rows
    assert fit(Small(), task, standard, FitSettings(epochs=1, batch_size=16)).rows
