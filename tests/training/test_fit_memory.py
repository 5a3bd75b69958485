"""A batch that does not fit in memory stops the run with the size that would; here a device is imagined."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import Small, small_task
from torch import Tensor, nn

from resolvent.attacks import Threat, capacity
from resolvent.attacks.capacity import TooMany
from resolvent.runtime import memory
from resolvent.training import Batch, FitSettings, Loss, fit, pgd_at, standard
from resolvent.training.step import cuda_graph


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the work says that it used, of a device with room for 100."""
    peak = [0]
    monkeypatch.setattr(capacity, "let_go", lambda: None)
    monkeypatch.setattr(capacity, "STREAMS", 0)
    monkeypatch.setattr(capacity, "_room", lambda: 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak[0])
    return peak


def test_the_batch_size_is_told(peak: list[int]) -> None:
    inner = pgd_at(Threat("linf", 0.1, (0.0, 1.0)), steps=1)

    def heavy(model: nn.Module, batch: Batch) -> Loss:
        if 10 * len(batch) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        peak[0] = 10 * len(batch)
        return inner(model, batch)

    task = small_task()
    with pytest.raises(TooMany, match=r"fit: 16 samples .* batch_size=9,") as raised:
        fit(Small(), task, heavy, FitSettings(epochs=1, batch_size=16))
    assert fit(Small(), task, heavy, FitSettings(epochs=1, batch_size=raised.value.fits)).rows
    assert fit(Small(), task, standard, FitSettings(epochs=1, batch_size=16)).rows


def test_what_is_kept_for_speed_goes_first(peak: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that fails on its way back beside something kept is run again without it, and learns the same."""
    held = [90]

    def give_up() -> bool:
        given, held[0] = held[0] > 0, 0
        return given

    class Tight(torch.autograd.Function):
        """Memory runs out after some gradients have been left in the parameters."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            if held[0]:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return g[0]

    def tight(model: nn.Module, batch: Batch) -> Loss:
        return standard(model, replace(batch, x=Tight.apply(batch.x.requires_grad_())))

    monkeypatch.setattr(memory, "_keepers", [give_up])
    task, settings = small_task(), FitSettings(epochs=1, batch_size=16)
    torch.manual_seed(0)
    model = Small()
    other = copy.deepcopy(model)
    rows = fit(model, task, tight, settings).rows
    assert held == [0]
    assert rows[0]["train_loss"] == fit(other, task, standard, settings).rows[0]["train_loss"]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_recording_is_given_up_for_good(caplog: pytest.LogCaptureFixture) -> None:
    recording, model = object.__new__(cuda_graph._Recording), Small()
    cuda_graph._recorded[model] = ((), {"this": recording, "seen": None})
    assert cuda_graph._given_up()
    assert cuda_graph._recorded[model][1] == {"this": False, "seen": None}
    assert "a smaller batch_size keeps it" in caplog.text
    assert not cuda_graph._given_up()
