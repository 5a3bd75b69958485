"""The state response and its distance: numbers of LegS and S4D, closed forms, and a spike that a plain grid misses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import assert_close
from resolvent.ssm.hippo import dplr, hippo
from resolvent.ssm.response_grid import (
    EigenResponse,
    dense_response,
    refined_grid,
    response_distance,
    response_peak,
)


@pytest.mark.parametrize("n", [1, 4, 64])
def test_response_of_legs_peaks_at_one_at_frequency_zero(n: int) -> None:
    peak = response_peak(dense_response(*hippo("legs", n)))
    assert peak.value == pytest.approx(1, abs=1e-10)
    assert peak.frequency == 0


@pytest.mark.parametrize(("n", "distance"), [(8, 4.783), (32, 20.290), (64, 40.703)])
def test_distance_of_s4d_from_legs(n: int, distance: float) -> None:
    lam, _, b, V = dplr("legs", n, halves=False)
    found = response_distance(EigenResponse(V, lam, b[:, None] / 2), dense_response(*hippo("legs", n)))
    assert found.value == pytest.approx(distance, abs=6e-4)  # three decimals are published
    assert found.frequency == pytest.approx(float(lam.imag.max()), rel=1e-2)


@pytest.mark.parametrize("inputs", [1, 3])
def test_response_is_the_dense_solve(inputs: int) -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((7, 7)) - 4 * np.eye(7)
    B = rng.standard_normal((7, inputs))
    w = np.array([-3.0, 0.0, 0.7, 1e4])
    want = np.stack([np.linalg.solve(1j * v * np.eye(7) - A, B) for v in w], 1)  # (n, k, m)
    lam, V = np.linalg.eig(A)
    A_t, B_t, w_t = (torch.from_numpy(t) for t in (A, B, w))
    eigen = EigenResponse(*(torch.from_numpy(t) for t in (V, lam, np.linalg.solve(V, B.astype(complex)))))
    for response in (dense_response(A_t, B_t), eigen):
        assert_close(response.at(w_t), torch.from_numpy(want))


def test_a_needle_is_found() -> None:
    """1 / (s + 1e-6 - 1000 i) has a peak of 1e6 that is 2e-6 wide: no even grid has a node there."""
    lam = torch.tensor([complex(-1e-6, 1000.0), complex(-1.0, 2.0)])
    one = EigenResponse(torch.eye(2, dtype=torch.complex128), lam.to(torch.complex128), torch.ones(2, 1).cdouble())
    peak = response_peak(one)
    assert peak.value == pytest.approx(1e6, rel=1e-6)
    even = torch.logspace(-2, 4, 10_000, dtype=torch.float64)
    assert float(one.at(even).abs().max()) < 100


def test_two_inputs_are_measured_by_the_spectral_norm() -> None:
    """(i w + 1)^-1 I has norm 1 at w = 0 whatever the number of inputs; its Frobenius norm is sqrt 3."""
    one = dense_response(-torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    assert response_peak(one).value == pytest.approx(1, abs=1e-12)


def test_negative_frequencies_are_seen_on_request() -> None:
    ones = torch.ones(1, 1, dtype=torch.complex128)
    one = EigenResponse(ones, torch.tensor([-0.1 - 5j], dtype=torch.complex128), ones)
    assert response_peak(one).value < 1
    assert response_peak(one, both_signs=True).value == pytest.approx(10, rel=1e-9)


def test_grid_rises_from_zero_and_holds_the_eigenfrequencies() -> None:
    w = refined_grid(torch.tensor([-0.5 + 3j, -0.5 - 3j, -2.0 + 0j]).cdouble())
    assert float(w[0]) == 0
    assert bool((w.diff() > 0).all())
    assert bool((w == 3).any())


def test_a_pole_on_the_axis_is_infinite_not_lost() -> None:
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert response_peak(dense_response(zero, one)).value == float("inf")
