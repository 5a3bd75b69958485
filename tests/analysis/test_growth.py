"""Kreiss constants and transient growth: brute force, closed forms, and the theorem that joins them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from transfer_cases import F64

from resolvent.analysis import exponential_growth, kreiss_constant, power_growth
from resolvent.analysis.matrices import kreiss
from resolvent.analysis.matrices.schur import Schur
from resolvent.analysis.matrices.sigma_min import sigma_min
from resolvent.ssm import hippo

SLOPE = torch.tensor([[-1.0, 20.0], [0.0, -2.0]], dtype=F64)


def toeplitz(n: int) -> torch.Tensor:
    """Eigenvalues inside a disc of radius 0.78, symbol far outside the unit circle."""
    up, down = torch.full((n - 1,), 1.5, dtype=F64), torch.full((n - 1,), 0.1, dtype=F64)
    return torch.diag(up, 1) + torch.diag(down, -1)


def brute_kreiss(A: torch.Tensor, discrete: bool) -> float:
    """The largest ratio over a grid that is geometric outwards and even across."""
    depth = np.geomspace(1e-3, 30, 160)[:, None]
    if discrete:
        z = (1 + depth) * np.exp(1j * np.linspace(0, math.pi, 121))
    else:
        z = depth + 1j * np.concatenate([[0], np.geomspace(1e-3, 30, 120)])
    return float((depth / sigma_min(Schur.of(A.numpy()), z.ravel()).reshape(z.shape)).max())


@pytest.mark.parametrize(
    ("A", "discrete"),
    [(SLOPE, False), (0.3 * SLOPE, True), (toeplitz(8), True), (toeplitz(8) - 1.1 * torch.eye(8), False)],
)
def test_the_bracket_holds_what_a_grid_sees(A: torch.Tensor, discrete: bool) -> None:
    found = kreiss_constant(A, discrete)
    grid = brute_kreiss(A, discrete)
    assert grid <= found.upper
    assert found.lower >= grid * (1 - 1e-6)
    assert found.upper <= found.lower * 1.02
    assert found.reason == ""
    depth = abs(found.point) - 1 if discrete else found.point.real
    sigma = float(sigma_min(Schur.of(A.numpy()), np.asarray([found.point]))[0])
    assert found.lower == pytest.approx(depth / sigma, rel=1e-6)


@pytest.mark.parametrize("n", [8, 16])
def test_kreiss_theorem(n: int) -> None:
    """K <= sup ||A^k|| <= e n K."""
    K, growth = kreiss_constant(toeplitz(n), discrete=True), power_growth(toeplitz(n))
    assert K.lower <= growth.value <= math.e * n * K.upper
    A = toeplitz(n) - 1.1 * torch.eye(n)
    K, flow = kreiss_constant(A, discrete=False), exponential_growth(A)
    assert K.lower <= flow.upper <= math.e * n * K.upper


def test_a_two_by_two_matrix_in_closed_form() -> None:
    """A = [[0, a], [0, 0]]: ||R(r)|| is explicit; K = max (r - 1) ||R(r)||."""
    a = 50.0
    r = np.linspace(1.0001, 6, 400001)
    size = a / (2 * r**2) + np.sqrt(1 / r**2 + (a / (2 * r**2)) ** 2)
    found = kreiss_constant(torch.tensor([[0.0, a], [0.0, 0.0]]), discrete=True, rtol=1e-3)
    want = float(((r - 1) * size).max())
    assert found.lower == pytest.approx(want, rel=1e-7)
    assert want <= found.upper <= want * 1.002


def test_contractions_have_one() -> None:
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    for A, discrete in ((hippo("legs", 32)[0], False), (torch.eye(3) * 0.5, True), (turn, True), (turn, False)):
        found = kreiss_constant(A, discrete)
        assert (found.lower, found.upper) == (1.0, 1.0)


@pytest.mark.parametrize("n", [3, 5, 16])
def test_rotations_never_grow(n: int) -> None:
    """Permutations and exponentials of skew matrices: eigenvalues on the edge, some beyond it by rounding."""
    turn = torch.eye(n, dtype=F64).roll(1, 0)
    skew = torch.randn(n, n, dtype=F64, generator=torch.Generator().manual_seed(n))
    skew = skew - skew.mT
    for growth in (power_growth(turn), exponential_growth(skew)):
        assert (growth.value, growth.upper, growth.reason) == (1.0, 1.0, "")
    for found in (kreiss_constant(turn, discrete=True), kreiss_constant(skew, discrete=False)):
        assert (found.lower, found.upper) == (1.0, 1.0)


@pytest.mark.parametrize("unit", [1.0, 1e-200, 1e200])
def test_the_unit_of_time_changes_nothing(unit: float) -> None:
    A = torch.tensor([[-1.0, 10.0], [0.0, -1.0]], dtype=F64)
    found, growth = kreiss_constant(unit * A, discrete=False), exponential_growth(unit * A)
    assert found.lower == pytest.approx(2.6, rel=1e-6)  # x max_w ||(x + i w - A)^-1|| is largest at x = 13/12
    assert found.upper <= 2.6 * 1.02
    assert found.point.real == pytest.approx(unit * 13 / 12, rel=1e-3)
    assert growth.value == pytest.approx(exponential_growth(A).value, rel=1e-12)
    assert growth.time == pytest.approx(exponential_growth(A).time / unit, rel=1e-12)


def test_a_plateau_over_sixteen_decades_is_bracketed() -> None:
    found = kreiss_constant(torch.tensor([[-1e8, 1e8], [0.0, -1e-8]], dtype=F64), discrete=False)
    assert found.reason == ""
    assert found.lower <= math.sqrt(2) <= found.upper <= found.lower * 1.02


def test_slow_transients_after_a_fast_start_are_bracketed() -> None:
    """exp(t A) has the entry 1e6 (e^(-t/1000) - e^(-t/500)), at most 1e6 / 4; the numerical abscissa is 500."""
    found = exponential_growth(torch.tensor([[-1e-3, 1e3], [0.0, -2e-3]], dtype=F64))
    assert found.value == pytest.approx(0.25e6, rel=1e-3)
    assert found.upper <= found.value * 1.001
    assert found.reason == ""


def test_a_kreiss_constant_looks_at_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    A = torch.randn(60, 60, dtype=F64, generator=torch.Generator().manual_seed(0)) / 8.5
    points: list[int] = []
    monkeypatch.setattr(kreiss, "sigma_min", lambda form, z: points.append(len(z)) or sigma_min(form, z))
    found = kreiss_constant(A, discrete=True)
    assert found.upper <= found.lower * 1.02
    assert sum(points) < 2000  # by the phases of the poles alone it took twice as many


def test_the_numerical_radius_is_enough_for_one() -> None:
    """[[0, 1.9], [0, 0]] has norm 1.9 and numerical radius 0.95: (|z| - 1)/dist(z, W) <= 1."""
    assert kreiss_constant(torch.tensor([[0.0, 1.9], [0.0, 0.0]]), discrete=True).upper == 1.0
    assert float(power_growth(torch.tensor([[0.0, 1.9], [0.0, 0.0]]))) == pytest.approx(1.9)


def test_unstable_is_infinite_with_a_reason() -> None:
    for A, discrete in ((torch.tensor([[1.1]]), True), (torch.tensor([[0.1]]), False)):
        found = kreiss_constant(A, discrete)
        assert found.lower == found.upper == math.inf
        assert "not stable" in found.reason
        growth = power_growth(A) if discrete else exponential_growth(A)
        assert growth.value == math.inf
        assert "not stable" in growth.reason


def test_a_defective_eigenvalue_on_the_edge_has_no_upper_bound() -> None:
    A = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=F64)
    found, growth = kreiss_constant(A, discrete=True), power_growth(A, max_steps=100)
    assert found.upper == growth.upper == math.inf
    assert growth.value > 1e6
    assert "on the unit circle" in found.reason
    assert growth.reason


@pytest.mark.parametrize("n", [2, 8, 24])
def test_powers_against_every_power(n: int) -> None:
    A = toeplitz(n).numpy()
    sizes, power = [1.0], np.eye(n)
    for _ in range(400):
        power = power @ A
        sizes.append(float(np.linalg.norm(power, 2)))
    found = power_growth(torch.from_numpy(A))
    assert found.value == found.upper == pytest.approx(max(sizes), rel=1e-12)
    assert found.time == int(np.argmax(sizes))


def test_slow_decay_is_bracketed_by_kappa() -> None:
    A = torch.tensor([[1 - 1e-6, 5.0], [0.0, 0.5]], dtype=F64)
    found = power_growth(A, max_steps=50)
    assert found.value == pytest.approx(10.04968, rel=1e-5)  # the limit of the fast part, (1, 10) seen from one side
    assert found.value <= found.upper < 2.1 * found.value
    assert found.reason.startswith("slow decay")


@pytest.mark.parametrize(
    "A", [SLOPE, torch.tensor([[-1e-6, 5.0], [0.0, -0.5]], dtype=F64), toeplitz(12) - torch.eye(12)]
)
def test_exponentials_against_a_fine_grid(A: torch.Tensor) -> None:
    found = exponential_growth(A)
    grid = max(float(np.linalg.norm(scipy.linalg.expm(t * A.numpy()), 2)) for t in np.linspace(0, 60, 601))
    assert grid <= found.upper
    assert found.value >= grid * (1 - 1e-3)
    assert found.upper <= found.value * 1.0011
    at = float(np.linalg.norm(scipy.linalg.expm(found.time * A.numpy()), 2))
    assert found.value == pytest.approx(at, rel=1e-9)


def test_an_undamped_oscillator_is_bounded_by_kappa() -> None:
    """[[0, 4], [-1, 0]] moves on an ellipse with axes 2 : 1."""
    found = exponential_growth(torch.tensor([[0.0, 4.0], [-1.0, 0.0]]))
    assert found.value == pytest.approx(2.0, rel=1e-3)
    assert found.upper == pytest.approx(2.0, rel=1e-3)


def test_legs_only_forgets() -> None:
    found = exponential_growth(hippo("legs", 32)[0])
    assert (found.value, found.upper, found.time) == (1.0, 1.0, 0.0)
    assert float(power_growth(torch.tensor([[0.5]]))) == 1.0


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="rtol must be above"):
        kreiss_constant(SLOPE, discrete=False, rtol=0.0)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        power_growth(SLOPE, max_steps=0)
    with pytest.raises(ValueError, match="rtol must be above"):
        exponential_growth(SLOPE, rtol=1e-9)
    with pytest.raises(TypeError, match="expected a square matrix"):
        power_growth(np.eye(2))  # type: ignore[arg-type]
