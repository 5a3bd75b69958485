"""Means of weights against torch's own, early stopping, pieces of a batch, and that all of them survive a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_models import Small, small_task
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from helpers import assert_close
from resolvent.attacks import Threat
from resolvent.training import FitSettings, fit, pgd_at, standard
from resolvent.training.history import has_stalled
from resolvent.training.step.batches import Batches

THREAT = Threat("linf", 0.1, (0.0, 1.0))
QUICK = FitSettings(epochs=3, batch_size=16, lr=0.02, schedule="constant", weight_decay=0.0)


def model() -> nn.Module:
    torch.manual_seed(0)
    return Small().double()


@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("late", [0.0, 1.0])
def test_the_mean_is_that_of_torch(kind: str, late: float) -> None:
    task, f, g = small_task(), model(), model()
    fit(f, task, standard, replace(QUICK, average=kind, average_decay=0.9, average_from=late))  # type: ignore[arg-type]

    def rising(mean: Tensor, now: Tensor, k: Tensor) -> Tensor:
        rate = min(0.9, (int(k) + 1) / (int(k) + 10))
        return rate * mean + (1 - rate) * now

    mean = AveragedModel(g, avg_fn=rising if kind == "ema" else None, use_buffers=True)
    batches = Batches(task.train.to("cpu", torch.float64), 16, 0)
    optimiser = torch.optim.AdamW(g.parameters(), lr=0.02, weight_decay=0.0)
    for step in range(3 * len(batches)):
        batch = batches.at(step)
        optimiser.zero_grad()
        F.cross_entropy(g(batch.x), batch.y).backward()
        optimiser.step()
        done = step + 1
        if done >= late * len(batches) and (kind == "ema" or done % len(batches) == 0):
            mean.update_parameters(g)
    assert_close(list(f.parameters()), list(mean.module.parameters()))
    assert any(not torch.equal(p, q) for p, q in zip(f.parameters(), g.parameters(), strict=True))


def test_what_is_measured_and_kept_is_the_mean(tmp_path: Path) -> None:
    task, f = small_task(), model()
    history = fit(f, task, standard, replace(QUICK, average="ema", average_decay=0.9), tmp_path)
    with torch.no_grad():
        right = (f(task.validation.x.double()).argmax(1) == task.validation.y).double().mean()
    assert history.rows[-1]["validation_clean"] == pytest.approx(float(right))
    again = model()
    assert_close(fit(again, task, standard, replace(QUICK, average="ema", average_decay=0.9), tmp_path).weights["last"],
                 history.weights["last"])  # fmt: skip
    assert_close(list(again.parameters()), list(f.parameters()))


@pytest.mark.parametrize("kind", ["none", "ema", "swa"])
def test_a_run_that_was_stopped_goes_on_to_the_same_mean(tmp_path: Path, kind: str) -> None:
    settings = replace(QUICK, average=kind, average_decay=0.9, save_every=2, accumulate=2, patience=2)  # type: ignore[arg-type]
    task, f = small_task(), model()
    whole = fit(f, task, standard, settings)
    calls = 0

    def failing(m: nn.Module, batch: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return standard(m, batch)  # type: ignore[arg-type]

    failing.__name__ = failing.__qualname__ = "standard"
    with pytest.raises(KeyboardInterrupt):
        fit(model(), task, failing, settings, tmp_path)  # type: ignore[arg-type]
    g = model()
    resumed = fit(g, task, standard, settings, tmp_path)
    assert_close(list(g.parameters()), list(f.parameters()))
    keep = lambda rows: [{k: v for k, v in row.items() if k != "seconds"} for row in rows]  # noqa: E731
    assert keep(resumed.rows) == keep(whole.rows)


@pytest.mark.parametrize("pieces", [2, 3, 16, 99])
def test_pieces_of_a_batch_give_its_gradient(pieces: int) -> None:
    task, f, g = small_task(), model(), model()
    objective = pgd_at(THREAT, steps=2)
    a = fit(f, task, objective, replace(QUICK, batch_size=17))
    b = fit(g, task, objective, replace(QUICK, batch_size=17, accumulate=pieces))
    assert_close(list(f.parameters()), list(g.parameters()))
    assert [row["train_score"] for row in a.rows] == [row["train_score"] for row in b.rows]


def test_training_stops_when_nothing_gets_better(caplog: pytest.LogCaptureFixture) -> None:
    task, f = small_task(), model()
    caplog.set_level("INFO", "resolvent.training")
    history = fit(f, task, standard, replace(QUICK, epochs=50, lr=0.0, patience=3))
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]  # the first is the best, then three are no better
    assert history.last["epoch"] == 4
    assert history.best["epoch"] == 1
    assert caplog.messages[-1] == "stopped after epoch 4 of 50: nothing better in 3 measurements"


def test_patience_counts_measurements() -> None:
    rows = [{"epoch": 1}, {"epoch": 2, "validation_clean": 0.5}, {"epoch": 3}, {"epoch": 4, "validation_clean": 0.4}]
    assert not has_stalled(rows, "clean", 2)
    assert has_stalled(rows, "clean", 1)
    assert not has_stalled(rows, "clean", None)
    assert not has_stalled([], "clean", 1)
    rows.append({"epoch": 5, "validation_clean": 0.6})
    assert not has_stalled(rows, "clean", 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"accumulate": 0}, "accumulate"),
        ({"patience": 0}, "patience"),
        ({"average": "mean"}, "average must be one of"),
        ({"average_decay": 1.0}, "below 1"),
        ({"average_from": 99.0}, "within the 3 epochs"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(QUICK, **wrong)


def test_a_run_from_before_these_settings_goes_on(tmp_path: Path) -> None:
    fit(model(), small_task(), standard, QUICK, tmp_path)
    written = (tmp_path / "config.json").read_text()
    assert "average" not in written
    assert "patience" not in written
    assert "accumulate" not in written
