"""Theorem 4.1 against enumeration over all signs and against the layer that it is made with; Table 1; the tracker."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import nn

from resolvent.analysis.generalisation.lower import mean_sign, rademacher_lower, sum_powers
from resolvent.analysis.generalisation.table import TABLE, scaling_curves, scaling_rows
from resolvent.analysis.generalisation.tracker import NormTracker, SelectiveTensors
from resolvent.attacks import Threat
from resolvent.data.readers.arrays import from_arrays
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.training import FitSettings, fit, pgd_at, standard
from resolvent.training.run import inner_threat


def rademacher_enumerated(outputs: list[float], B_w: float) -> float:
    """(1/m) E sup_{|w| <= B_w} w sum sigma_i z_i over all 2^m signs, z the features of m samples."""
    m = len(outputs)
    sums = (abs(math.fsum(s * z for s, z in zip(signs, outputs, strict=True))) for signs in product((-1, 1), repeat=m))
    return B_w * math.fsum(sums) / 2**m / m


@pytest.mark.parametrize("m", range(1, 13))
def test_theorem_4_1_against_enumeration(m: int) -> None:
    for s_A in (0.0, 0.1, 0.7):
        z = sum_powers(s_A, 9)
        assert rademacher_lower(1.5, s_A, 9, m) == pytest.approx(rademacher_enumerated([z] * m, 1.5), rel=1e-12)


def test_mean_sign_by_the_known_values_and_in_the_limit() -> None:
    assert (mean_sign(1), mean_sign(2), mean_sign(3)) == (1.0, 0.5, 0.5)
    assert mean_sign(1001) == pytest.approx(math.comb(1000, 500) / 2**1000, rel=1e-12)  # where the formula changes
    limit = lambda m: math.sqrt(2 / (math.pi * m))  # noqa: E731  # as printed
    assert mean_sign(10**6) == pytest.approx(limit(10**6), rel=1e-6)
    assert all(limit(m) > mean_sign(m) for m in range(2, 60, 2))  # the print claims too much there


def test_unrolled_near_zero_and_beyond() -> None:
    assert sum_powers(0.0, 50) == 50.0
    assert sum_powers(1e-12, 50) == pytest.approx(50.0, rel=1e-9)
    assert sum_powers(1.0, 10) == 1023.0
    assert sum_powers(1.0, 5000) == math.inf


@pytest.mark.parametrize("s_A", [0.0, 0.1, 0.5])
def test_the_construction_on_the_layer(s_A: float) -> None:
    """A = ln(1 + s_A), W_B = W_C = 1, q = 0 and a step of 1, fed with ones."""
    layer = ScalarS6(1, 1).double()
    with torch.no_grad():
        for p, value in ((layer.A, math.log1p(s_A)), (layer.W_B, 1.0), (layer.W_C, 1.0), (layer.q, 0.0)):
            p.fill_(value)
        layer.p.fill_(math.log(math.e - 1))  # softplus(p) = 1
    y, _ = layer(torch.ones(1, 20, 1, dtype=torch.float64))
    assert float(y.detach()[0, -1, 0]) == pytest.approx(sum_powers(s_A, 20), rel=1e-12)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((1.0, -0.1, 5, 3), "s_A >= 0"),
        ((1.0, math.nan, 5, 3), "s_A >= 0"),
        ((-1.0, 0.1, 5, 3), "B_w"),
        ((1.0, 0.1, 0, 3), "T must be"),
        ((1.0, 0.1, 5, 0), "m must be"),
    ],
)
def test_refusals(args: tuple[float, float, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rademacher_lower(*args)


# -- Table 1 -----------------------------------------------------------------------------------------------------------


def test_scaling_table_and_curves() -> None:
    rows = scaling_rows()
    assert len(rows) == len(TABLE) == 9
    pairs = {(r["model"], r["T"]) for r in rows}
    assert pairs >= {("selective SSM", "1"), ("softmax attention", "1"), ("linear attention", "T")}
    curves = {c["name"]: c["log_growth"] for c in scaling_curves([100, 200, 400], log_rho=0.01)}
    assert curves["selective SSM, s_A < 0"] == [0.0, 0.0, 0.0]
    assert curves["linear attention"][2] == pytest.approx(math.log(4))
    assert curves["selective SSM, s_A >= 0"][1] == pytest.approx(math.log(2) + 1.0)
    assert curves["continuous LTI SSM, s_A < 0"][1] == pytest.approx(1.5 * math.log(math.log(200) / math.log(100)))
    with pytest.raises(ValueError, match="at least 2"):
        scaling_curves([1, 2])
    with pytest.raises(ValueError, match="rho_A >= 1"):
        scaling_curves([2, 4], log_rho=-0.1)


# -- the tracker -------------------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = ScalarS6(3, 4, abscissa=0.1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def found(model: nn.Module) -> SelectiveTensors:
    layer = model.layer
    return SelectiveTensors(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, u=torch.ones(2, 3))


@pytest.mark.slow
def test_tracker_writes_table_3_during_training() -> None:
    x, y = torch.randn(40, 6, 3), torch.arange(40) % 2
    task = from_arrays(x, y, fractions=(0.25, 0.25))
    model, tracker = Tiny(), NormTracker(found, every=2)
    W = model.layer.W_B.detach().clone()
    history = fit(model, task, tracker.watching(standard), FitSettings(epochs=2, batch_size=5), final=tracker)
    assert [row["step"] for row in tracker.rows] == [0, 2, 4, 6]
    first = tracker.rows[0]
    assert first["W_B_frobenius"] == pytest.approx(float(W.norm()), rel=1e-6)
    assert first["W_B_spectral"] == pytest.approx(float(torch.linalg.matrix_norm(W, 2)), rel=1e-6)
    assert first["s_A"] == pytest.approx(0.1, rel=1e-6)
    assert first["B_u"] == pytest.approx(math.sqrt(3), rel=1e-6)
    assert tracker.rows[-1]["W_B_frobenius"] != first["W_B_frobenius"]
    assert tracker.table()[0]["||W_B||_2"] == first["W_B_frobenius"]  # the printed name of the Frobenius norm
    assert "s_A" in history.summary["last"]


def test_tracker_leaves_the_training_alone() -> None:
    x, y = torch.randn(20, 5, 3), torch.arange(20) % 2
    task = from_arrays(x, y)
    models = []
    for wrap in (lambda o: o, NormTracker(found).watching):
        torch.manual_seed(1)
        model = Tiny()
        fit(model, task, wrap(standard), FitSettings(epochs=1, batch_size=4))
        models.append(model.layer.W_B.detach().clone())
    assert torch.equal(*models)


def test_tracker_keeps_an_adversarial_objective_adversarial() -> None:
    threat = Threat("l2", 0.1)
    assert inner_threat(NormTracker(found).watching(pgd_at(threat))) is threat
    with pytest.raises(ValueError, match="every"):
        NormTracker(found, every=0)
