"""Class weights against torch's own weighted cross-entropy, in every objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import Small, small_task
from torch import nn
from torch.nn import functional as F

from resolvent.attacks import Draws, Threat
from resolvent.training import Batch, FitSettings, awp, fit, noisy, pgd_at, spread, standard, trades, weighted
from resolvent.training.weighted import balanced_weights

WEIGHTS = (0.5, 2.0, 3.0)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.map(x.mean(2))
        return out


@pytest.fixture
def model() -> Line:
    torch.manual_seed(0)
    return Line()


@pytest.fixture
def batch() -> Batch:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.rand(7, 4, 2, generator=draw), torch.tensor([0, 1, 2, 1, 0, 2, 2])
    return Batch(x, y, None, Draws(3, torch.arange(7)))


def test_standard_is_torchs_own(model: Line, batch: Batch) -> None:
    w = torch.tensor(WEIGHTS)
    expected = F.cross_entropy(model(batch.x), batch.y, weight=w, reduction="sum") / len(batch)
    torch.testing.assert_close(weighted(standard, WEIGHTS)(model, batch).value, expected)


@pytest.mark.parametrize("make", [lambda t: standard, lambda t: pgd_at(t, steps=2), lambda t: trades(t, 2.0, steps=2),
                                  lambda t: noisy(0.1)])  # fmt: skip
def test_each_sample_counts_as_its_class_says(make: object, model: Line, batch: Batch) -> None:
    """The weighted mean is that of the losses of each sample alone: an attack moves every sample for itself."""
    objective = make(Threat("linf", 0.1, (0, 1)))  # type: ignore[operator]
    alone = [objective(model, batch.part(slice(i, i + 1))).value for i in range(len(batch))]
    expected = sum(WEIGHTS[int(y)] * loss for y, loss in zip(batch.y, alone, strict=True)) / len(batch)
    torch.testing.assert_close(weighted(objective, WEIGHTS)(model, batch).value, expected)
    ones = weighted(objective, (1.0, 1.0, 1.0))(model, batch).value
    torch.testing.assert_close(ones, objective(model, batch).value)


def test_the_threat_is_seen_through_it(model: Line, batch: Batch) -> None:
    threat = Threat("linf", 0.1, (0, 1))
    assert weighted(pgd_at(threat), WEIGHTS).inner.threat is threat  # type: ignore[attr-defined]
    assert float(spread(weighted(standard, WEIGHTS))(model, batch).value.detach()) > 0
    part = batch.part(slice(2, 5))
    assert part.weight is None


def test_balanced() -> None:
    """Every class has the same sum; a class without samples does not count."""
    y = torch.tensor([0, 0, 0, 2])
    weights = balanced_weights(y, 4)
    assert weights == (4 / 6, 1.0, 2.0, 1.0)
    assert sum(weights[int(k)] for k in y) == pytest.approx(len(y))


@pytest.mark.parametrize("bad", [(1.0, -1.0, 1.0), (1.0, float("nan"), 1.0), (0.0, 1.0, 1.0)])
def test_bad_weights(bad: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="weights"):
        weighted(standard, bad)


def test_arrays_of_weights_and_objectives_by_name(model: Line, batch: Batch) -> None:
    plain = weighted(standard, WEIGHTS)
    assert weighted("standard", torch.tensor(WEIGHTS)) == weighted(standard, np.array(WEIGHTS)) == plain
    assert balanced_weights(batch.y, 3) == tuple(7 / (3 * n) for n in (2, 2, 3))


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_weights_than_classes_is_refused(count: int) -> None:
    task = small_task()
    with pytest.raises(ValueError, match=f"each of 3 classes, got {count} weights"):
        fit(Small(), task, weighted(standard, (1.0,) * count), FitSettings(epochs=1))


def test_too_few_weights_in_a_loop_of_ones_own(model: Line, batch: Batch) -> None:
    with pytest.raises(ValueError, match="each of 3 classes, got 2 weights"):
        weighted(standard, (1.0, 2.0))(model, batch)
    for none in ((), "balanced"):
        with pytest.raises(ValueError, match="a weight for each class"):
            weighted(standard, none)  # type: ignore[arg-type]


def test_awp_stands_inside() -> None:
    robust = pgd_at(Threat("linf", 0.1, (0, 1)))
    assert weighted(awp(robust), WEIGHTS).inner.threat.eps == 0.1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"weighted\(awp\(objective\), weights\)"):
        awp(weighted(robust, WEIGHTS))  # type: ignore[arg-type]


def test_real_targets_have_no_classes(model: Line, batch: Batch) -> None:
    wrong = Batch(batch.x, torch.randn(7, 3), None, batch.draws)
    with pytest.raises(ValueError, match="no classes to weigh"):
        weighted(standard, WEIGHTS)(model, wrong)
