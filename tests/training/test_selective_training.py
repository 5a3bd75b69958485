"""What the generalisation study trains with: one logit, Adam, a plateau, the penalty, noise, and watched norms."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_models import Small, batch_of, small_task
from torch import nn

from helpers import assert_close
from resolvent.data import from_arrays
from resolvent.training import FitSettings, fit, noisy, spread, standard
from resolvent.training.collapse import collapse
from resolvent.training.measure import score
from resolvent.training.optimiser import FACTOR, PATIENCE, THRESHOLD, make_optimiser, plateau
from resolvent.training.step.batch import criterion

F64 = torch.float64


def test_one_logit_is_two_with_zero_beside_it() -> None:
    z, y = torch.randn(20, 1, dtype=F64), torch.arange(20) % 2
    pair = torch.cat([torch.zeros_like(z), z], 1)
    assert_close(criterion(z, y), criterion(pair, y))
    assert torch.equal(score(z, y), score(pair, y))


def test_fit_takes_one_logit_for_two_classes() -> None:
    x = torch.rand(40, 5, 2)
    y = (x.mean((1, 2)) > 0.5).long()
    task = from_arrays(x, y, bounds=(0.0, 1.0), name="two")
    model = Small(classes=1)
    history = fit(model, task, settings=FitSettings(epochs=30, batch_size=8, lr=0.05))
    assert history.best["validation_clean"] > 0.7
    three = from_arrays(x, torch.arange(40) % 3, bounds=(0.0, 1.0), name="three")
    with pytest.raises(ValueError, match="give the model 3 outputs"):
        fit(Small(classes=1), three)


@pytest.mark.parametrize("seed", range(4))
def test_plateau_is_torchs(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    losses = (1.0 + 0.3 * torch.rand(60, generator=g) - 0.01 * torch.arange(60)).tolist()
    parameter = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=FACTOR, patience=PATIENCE, threshold=THRESHOLD, eps=0.0
    )
    for k, loss in enumerate(losses):
        schedule.step(loss)
        assert plateau(losses[: k + 1]) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-12)
    assert plateau(losses) < 1
    assert plateau([]) == 1


def test_the_rate_falls_on_a_plateau_and_a_resumed_run_has_the_same(tmp_path: Path) -> None:
    settings = FitSettings(epochs=9, batch_size=32, lr=0.1, weight_decay=0.0, schedule="plateau", optimiser="adam")
    stuck = nn.Sequential(nn.Flatten(), nn.Linear(10, 3))
    nn.init.zeros_(stuck[1].weight)
    stuck[1].weight.requires_grad_(False)
    rows = fit(stuck, small_task(), settings=settings, folder=tmp_path).rows
    rates = [row["lr"] for row in rows]
    assert rates[0] == 0.1
    assert rates[-1] == pytest.approx(0.09)


def test_adams_decay_is_part_of_the_gradient() -> None:
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    settings = FitSettings(lr=1e-2, weight_decay=0.1, optimiser="adam", groups=False)
    ours, theirs = make_optimiser(model, settings), torch.optim.Adam(twin.parameters(), lr=1e-2, weight_decay=0.1)
    for optimiser, net in ((ours, model), (theirs, twin)):
        net(torch.ones(1, 3)).sum().backward()
        optimiser.step()
    assert torch.equal(model.weight, twin.weight)


def test_the_penalty() -> None:
    """1 for constant answers, 0 from a deviation of a tenth on, and the formula between."""
    assert float(collapse(torch.full((8, 1), 3.0))) == pytest.approx(1.0)
    assert float(collapse(torch.tensor([[-9.0], [9.0]]))) == 0
    z = 0.1 * torch.randn(50, 10, dtype=F64)
    p = 1 / (1 + (-z).exp())
    assert float(collapse(z)) == pytest.approx(10 * (0.1 - math.sqrt(float(p.var()))), rel=1e-12)
    assert math.isfinite(float(collapse(torch.zeros(1, 1))))
    batch, model = batch_of(small_task()), Small().double()
    plain, held = standard(model, batch), spread()(model, batch)
    assert_close(held.value, plain.value + collapse(plain.output))


def test_noise_is_drawn_for_each_sample_and_epoch() -> None:
    batch, model = batch_of(small_task()), Small().double()
    x = batch.x + 0.3 * batch.draws.normal(0, 0, batch.x.shape[1:], batch.x.dtype)
    assert_close(noisy(0.3)(model, batch).output, model(x))
    assert float((x - batch.x).std()) == pytest.approx(0.3, rel=0.1)
    with pytest.raises(ValueError, match="sigma"):
        noisy(-1.0)


def test_what_is_watched_stands_in_the_rows_of_a_resumed_run(tmp_path: Path) -> None:
    def watch(model: nn.Module) -> dict[str, float]:
        return {"size": float(model.enter.weight.detach().norm())}

    settings = FitSettings(epochs=2, batch_size=16, lr=0.02)
    torch.manual_seed(0)
    whole = fit(Small(), small_task(), settings=settings, folder=tmp_path / "whole", watch=watch)
    sizes = [row["size"] for row in whole.rows]
    assert len(set(sizes)) == 2

    def dies(model: nn.Module) -> dict[str, float]:
        if (tmp_path / "cut" / "metrics.jsonl").is_file():
            raise KeyboardInterrupt
        return watch(model)

    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        fit(Small(), small_task(), settings=settings, folder=tmp_path / "cut", watch=dies)
    resumed = fit(Small(), small_task(), settings=settings, folder=tmp_path / "cut", watch=watch)
    assert [row["size"] for row in resumed.rows] == sizes
