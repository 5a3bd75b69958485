"""A loss or gradient that is no number: the run stops, says where, and has changed nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import Small, small_task
from torch import Tensor, nn

from resolvent.training import Diverged, FitSettings, Loss, fit, standard
from resolvent.training.step.guard import Guard

QUICK = FitSettings(epochs=3, batch_size=16, lr=0.02)


def model() -> Small:
    torch.manual_seed(0)
    return Small()


class Breaks(nn.Module):
    """Turns to NaN in training pass number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.passes = at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return x * (float("nan") if self.passes >= self.at and self.training else 1.0)


def broken(at: int) -> nn.Module:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(10, 8), Breaks(at), nn.Tanh())
    return nn.Sequential(nn.Flatten(), part, nn.Linear(8, 3))


@pytest.fixture(params=[False, True], ids=["prompt", "guarded"])
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Updates as on a GPU: they guard themselves, and a step's numbers are read when the next one is taken."""
    if request.param:
        monkeypatch.setattr("resolvent.training.run.guard", Guard)
    return bool(request.param)


def test_guarded_updates_give_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, save_every=2, clip=0.1)
    first, second = model(), model()
    want = fit(first, small_task(), standard, settings)
    monkeypatch.setattr("resolvent.training.run.guard", Guard)
    got = fit(second, small_task(), standard, settings, tmp_path)
    for a, b in zip(got.rows, want.rows, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.usefixtures("guarded")
def test_nan_stops_the_run_and_names_the_layer(tmp_path: Path) -> None:
    f = broken(7)
    with pytest.raises(Diverged, match=r"step 7 \(epoch 3\): it first appeared in 1\.1 \(Breaks\), from finite inputs"):
        fit(f, small_task(), standard, QUICK, tmp_path)
    assert all(torch.isfinite(p).all() for p in f.parameters())
    sound = broken(10**9)
    whole = fit(sound, small_task(), standard, QUICK)
    fixed = fit(broken(10**9), small_task(), standard, QUICK, tmp_path)  # the mended model goes on from the good state
    assert [r["train_loss"] for r in fixed.rows] == [r["train_loss"] for r in whole.rows]


@pytest.mark.usefixtures("guarded")
def test_an_infinite_gradient_stops_the_run_and_names_the_weight() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(10, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.w.square().sqrt()  # the slope of sqrt at 0 is infinite

    f = Root()
    with pytest.raises(Diverged, match="the gradient of w is not finite although every output is"):
        fit(f, small_task(), standard, QUICK)
    assert (f.w == 0).all()


@pytest.mark.usefixtures("guarded")
def test_what_cannot_be_found_again_is_not_called_an_overflow() -> None:
    f, calls = model(), []

    def once(own: nn.Module, batch: object) -> Loss:
        found = standard(own, batch)  # type: ignore[arg-type]
        calls.append(1)
        bad = math.nan if len(calls) == 2 else 0.0
        return Loss(found.value + bad, found.output)

    with pytest.raises(Diverged, match=r"step 2 \(epoch 1\): taken again, its outputs and gradients are finite"):
        fit(f, small_task(), once, QUICK)


def test_weights_and_optimiser_are_those_from_before_the_step(guarded: bool) -> None:
    f, seen = broken(7), []

    def noted(own: nn.Module, batch: object) -> Loss:
        seen.append([p.detach().clone() for p in own.parameters()])
        return standard(own, batch)  # type: ignore[arg-type]

    with pytest.raises(Diverged, match=r"step 7 \(epoch 3\)"):
        fit(f, small_task(), noted, QUICK)
    assert len(seen) == (10 if guarded else 8)  # the search for the place runs the step again
    assert not all(torch.equal(p, q) for p, q in zip(seen[5], seen[6], strict=True))
    assert all(torch.equal(p, q) for p, q in zip(f.parameters(), seen[6], strict=True))


@pytest.mark.usefixtures("guarded")
def test_a_weight_that_came_broken_is_named() -> None:
    f = model()
    with torch.no_grad():
        f.enter.bias[0] = math.nan
    with pytest.raises(Diverged, match=r"the weight enter\.bias is already not finite"):
        fit(f, small_task(), standard, QUICK)
