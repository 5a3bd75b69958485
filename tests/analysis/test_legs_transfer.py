"""What dropping the low-rank term does to LegS: published heights and places of the spikes, as norms with brackets.

G_DPLR = C (s - A)^-1 B, G_Diag the same for the normal part alone with B/2; suprema over s = i w.
"""

from __future__ import annotations

import math

import pytest
import torch
from transfer_cases import F64, legs, legs_diagonal, legs_dplr, unit

from resolvent.analysis import dc_gain, difference, frequency_response, hinf_norm
from resolvent.ssm import System

SPIKES = [  # n, C = e0: height, place; C = e_{n-1}: height; C = e0 without the half: height
    (4, 0.65136, 4.607, 1.1187, 4.643, 1.5146),
    (8, 0.64379, 19.857, 2.1840, 19.860, 1.3379),
    (32, 0.63713, 325.426, 5.0101, 325.426, 1.2773),
    (64, 0.63675, 1303.274, 7.1588, 1303.274, 1.2743),
    pytest.param(256, 0.63663, 20860.233, 14.389, 20860.233, 1.2733, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("n", "first", "place", "last", "last_place", "whole"), SPIKES)
def test_spikes(n: int, first: float, place: float, last: float, last_place: float, whole: float) -> None:
    for row, scale, height, where in ((0, 0.5, first, place), (n - 1, 0.5, last, last_place), (0, 1.0, whole, None)):
        C = unit(n, row)
        norm = hinf_norm(difference(legs_diagonal(n, C, scale), legs_dplr(n, C)))
        assert float(norm) == pytest.approx(height, rel=6e-5)  # five digits are published
        assert float(norm.upper / norm.lower) - 1 < 3e-6
        if where is not None:
            assert abs(float(norm.frequency)) == pytest.approx(where, abs=2e-3)  # published: the nearest node of a grid


def test_the_height_tends_to_two_over_pi() -> None:
    pairs = [(legs_diagonal(n, unit(n, 0)), legs_dplr(n, unit(n, 0))) for n in (8, 16, 32)]
    excess = [float(hinf_norm(difference(*pair))) - 2 / math.pi for pair in pairs]
    assert excess[0] > excess[1] > excess[2] > 0
    assert excess[2] < 6e-4


@pytest.mark.parametrize("n", [2, 4, 8, 32, 64])
def test_the_last_channel_passes_one_over_root_2n_minus_1(n: int) -> None:
    """|G| = sqrt(2n-1) w / sqrt((w^2 + (n-1)^2)(w^2 + n^2)), largest at w^2 = n (n-1)."""
    for system in (legs(n, unit(n, n - 1)), legs_dplr(n, unit(n, n - 1))):
        norm = hinf_norm(system)
        assert float(norm) == pytest.approx(1 / math.sqrt(2 * n - 1), rel=1e-10)
        assert abs(float(norm.frequency)) == pytest.approx(math.sqrt(n * (n - 1)), rel=1e-5)  # a maximum is flat
        assert float(norm.lower) <= 1 / math.sqrt(2 * n - 1) * (1 + 1e-11)
        assert float(norm.upper) >= 1 / math.sqrt(2 * n - 1) * (1 - 1e-11)


@pytest.mark.parametrize(
    ("n", "at_one"), [(8, 7.804e-2), (32, 2.276e-2), (64, 1.113e-2), (128, 5.491e-3), (256, 2.754e-3)]
)
def test_weak_convergence_at_a_fixed_frequency(n: int, at_one: float) -> None:
    C = unit(n, 0)
    w = torch.tensor([0.0, 1.0, 5.0], dtype=F64)
    gap = (frequency_response(legs_diagonal(n, C), w) - frequency_response(legs_dplr(n, C), w)).abs()[0, 0]
    assert float(gap[0]) < 1e-11
    assert float(gap[1]) == pytest.approx(at_one, rel=2e-4)  # four digits are published
    if n == 256:
        assert n * float(gap[1]) == pytest.approx(0.705, abs=5e-4)
        assert n * float(gap[2]) == pytest.approx(0.968, abs=2e-3)  # the limit, not yet reached


def test_without_the_half_the_gain_at_zero_is_off_by_c0() -> None:
    C = torch.randn(1, 8, dtype=F64)
    gap = dc_gain(legs_diagonal(8, C, 1.0)) - dc_gain(legs_dplr(8, C))
    assert float(gap.abs()) == pytest.approx(abs(float(C[0, 0])), rel=1e-10)


@pytest.mark.parametrize(("n", "distance", "height"), [(8, 4.783, None), (32, 20.290, 20.388)])
def test_the_state_of_the_diagonal_model_spikes_like_n(n: int, distance: float, height: float | None) -> None:
    """D = sup ||H_Diag - H_DPLR||_2, what no unit C can exceed."""
    eye = torch.eye(n, dtype=F64)
    diagonal = legs_diagonal(n, eye)
    norm = hinf_norm(difference(diagonal, legs_dplr(n, eye)), rtol=1e-4)
    assert float(norm) == pytest.approx(distance, abs=6e-4)
    assert float(norm.upper / norm.lower) - 1 < 3e-4
    if height is not None:
        assert float(hinf_norm(diagonal, rtol=1e-4)) == pytest.approx(height, abs=6e-4)


def test_the_difference_is_what_it_says() -> None:
    a, b = legs_diagonal(8, unit(8, 2)), legs_dplr(8, unit(8, 2))
    w = torch.linspace(-30, 30, 41, dtype=F64)
    gap = frequency_response(difference(a, b), w) - (frequency_response(a, w) - frequency_response(b, w))
    assert float(gap.abs().max()) < 1e-13
    same: System = difference(a, a)
    assert type(same.A) is type(a.A)
