"""Balanced truncation: the error bound against the H-infinity norm of what was lost."""

from __future__ import annotations

import math

import pytest
import torch
from transfer_cases import F64, closed, dense, legs, one_pole

from helpers import assert_close
from resolvent.analysis import (
    balanced_truncation,
    difference,
    frequency_response,
    hankel_singular_values,
    hinf_norm,
)
from resolvent.analysis.systems.truncation import real_form
from resolvent.ssm import Diagonal, System


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("order", [1, 3, 6])
def test_the_error_is_within_the_bound(discrete: bool, order: int) -> None:
    for system in (closed(4, 2, 2, discrete=discrete), dense(8, 1, 2, discrete=discrete)):
        reduced = balanced_truncation(system, order)
        s = hankel_singular_values(system)
        assert float(reduced.error_bound) == pytest.approx(2 * float(s[order:].sum()), rel=1e-9)
        error = hinf_norm(difference(real_form(system), reduced.system))
        assert float(error.lower) <= float(reduced.error_bound)
        assert float(error.upper) >= float(s[order]) * (1 - 1e-9)  # no system of that order can do better
        assert reduced.system.states == order
        assert reduced.system.dtype == F64  # real maps stay real
        assert reduced.system.delay == system.delay


def test_a_reduced_system_is_stable_and_balanced() -> None:
    system = dense(10, discrete=True)
    reduced = balanced_truncation(system, 5)
    assert float(torch.linalg.eigvals(reduced.system.A.dense()).abs().max()) < 1
    whole = balanced_truncation(system, 10).system
    assert_close(hankel_singular_values(whole), reduced.hankel_singular_values)


def test_a_tolerance_picks_the_fewest_states() -> None:
    system = legs(32, torch.ones(1, 32, dtype=F64))
    reduced = balanced_truncation(system, tolerance=0.5)
    tails = [2 * float(reduced.hankel_singular_values[r:].sum()) for r in range(33)]
    assert reduced.order == min(r for r in range(33) if tails[r] <= 0.5)
    assert float(hinf_norm(difference(system, reduced.system)).upper) <= 0.5


def test_states_of_no_weight_become_zeros() -> None:
    """A doubled pole has one state to spare; all orders keep the same map."""
    lam = torch.tensor([0.5, 0.5, 0.2], dtype=F64)
    system = System(Diagonal(lam), torch.ones(3, 1), torch.ones(1, 3), torch.ones(1, 1), 1.0)
    w = torch.linspace(0, 3, 7, dtype=F64)
    for order in (2, 3):
        reduced = balanced_truncation(system, order).system
        assert bool(torch.isfinite(reduced.A.dense()).all())
        assert_close(frequency_response(reduced, w), frequency_response(system, w))


def test_a_bank_keeps_one_order() -> None:
    system = System(Diagonal(torch.rand(3, 2, 8, dtype=F64) * 0.9), torch.randn(8, 1, dtype=F64),
                    torch.randn(3, 1, 1, 8, dtype=F64), torch.zeros(1, 1), 1.0)  # fmt: skip
    reduced = balanced_truncation(system, tolerance=0.1)
    assert reduced.error_bound.shape == (3, 2)
    assert float(reduced.error_bound.max()) <= 0.1
    error = hinf_norm(difference(system, reduced.system))
    assert bool((error.lower <= reduced.error_bound + 1e-12).all())


def test_bad_input() -> None:
    system = one_pole(0.5)
    with pytest.raises(ValueError, match="either an order or a tolerance"):
        balanced_truncation(system)
    with pytest.raises(ValueError, match="has 1 states, so order=2"):
        balanced_truncation(system, 2)
    with pytest.raises(ValueError, match="order must be at least 1"):
        balanced_truncation(system, 0)
    with pytest.raises(ValueError, match="tolerance must be above 0"):
        balanced_truncation(system, tolerance=-1.0)
    with pytest.raises(ValueError, match=r"not stable: a pole on the unit circle\. Only a stable system"):
        balanced_truncation(one_pole(1.0), 1)
    with pytest.raises(ValueError, match="a discrete one without delay and a continuous one"):
        difference(system, one_pole(-1.0, dt=None))
    with pytest.raises(ValueError, match="1 inputs to 1 outputs and 1 to 2"):
        difference(system, System(Diagonal(torch.zeros(1)), torch.ones(1, 1), torch.ones(2, 1), torch.zeros(2, 1), 1.0))
    assert float(hinf_norm(difference(system, system))) <= math.ulp(4.0)
