"""Training on a GPU looks at a step's numbers when the next one is under way: what that must not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from resolvent.data import from_arrays
from resolvent.data.task import Task
from resolvent.training import Diverged, FitSettings, Loss, fit, standard

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SETTINGS = FitSettings(epochs=3, batch_size=16, lr=0.02)


class Breaks(nn.Module):
    """Turns to NaN in training pass number `at`, and back to numbers after `until`."""

    def __init__(self, at: int, until: int) -> None:
        super().__init__()
        self.at, self.until, self.passes = at, until, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return x * (float("nan") if self.at <= self.passes < self.until and self.training else 1.0)


def task() -> Task:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, 2, generator=g)
    return from_arrays(x, (x.sum((1, 2)) > 5).long(), seed=0)


def model(at: int = 10**9, until: int = 10**9) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(10, 8), Breaks(at, until), nn.Tanh(), nn.Linear(8, 2)).cuda()


def test_no_update_after_a_step_that_is_not_finite() -> None:
    """Not even by the step that was under way, whose own numbers are finite."""
    seen, f = [], model(5, 6)

    def noted(own: nn.Module, batch: object) -> Loss:
        seen.append([p.detach().clone() for p in own.parameters()])
        return standard(own, batch)  # type: ignore[arg-type]

    with pytest.raises(Diverged, match="step 5"):
        fit(f, task(), noted, SETTINGS)
    assert len(seen) >= 6
    assert not all(torch.equal(p, q) for p, q in zip(seen[3], seen[4], strict=True))
    assert all(torch.equal(p, q) for p, q in zip(f.parameters(), seen[4], strict=True))


def test_the_same_numbers_as_updates_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = model(), model()
    got = fit(first, task(), standard, SETTINGS)
    monkeypatch.setattr("resolvent.training.run.guard", lambda optimiser, device: None)
    want = fit(second, task(), standard, SETTINGS)
    assert [row["train_loss"] for row in got.rows] == [row["train_loss"] for row in want.rows]
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
