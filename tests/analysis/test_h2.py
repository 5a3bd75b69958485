"""H2, Gramians and responses in time: sums of impulse responses, scipy's Lyapunov solvers, python-control."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
import torch
from transfer_cases import C128, F64, closed, dense, legs, one_pole, unit

from helpers import assert_close
from resolvent.analysis import (
    dc_gain,
    h2_norm,
    hankel_singular_values,
    impulse_response,
    poles,
    step_response,
    time_constants,
)
from resolvent.analysis.systems.gramian import controllability_factor, observability_factor
from resolvent.analysis.systems.truncation import real_form
from resolvent.ssm import Dense, Diagonal, System, hippo


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("make", [closed, dense])
def test_discrete_is_the_root_of_the_summed_squares(make: object, delay: bool) -> None:
    system = make(4, 2, 3, discrete=True)  # type: ignore[operator]
    system = replace(system, delay=delay)
    want = float(impulse_response(system, 6000).abs().square().sum().sqrt())
    assert float(h2_norm(system)) == pytest.approx(want, rel=1e-10)
    assert float(h2_norm(system.dense())) == pytest.approx(want, rel=1e-10)
    if not delay:
        assert float(h2_norm(system.delayed())) == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("lam", [0.5, -0.99, 1 - 1e-8, -(1 - 1e-13), 0.6 + 0.79j])
def test_one_pole(lam: complex) -> None:
    """|c b| / sqrt(1 - |lam|^2), all digits of 1 - |lam|^2 kept."""
    z = complex(lam)
    rest = float(1 - Fraction(z.real) ** 2 - Fraction(z.imag) ** 2)
    assert float(h2_norm(one_pole(z, b=2.0, c=3.0))) == pytest.approx(6 / math.sqrt(rest), rel=1e-12)
    assert float(h2_norm(one_pole(-3.0, b=2.0, c=3.0, dt=None))) == pytest.approx(6 / math.sqrt(6), rel=1e-14)


@pytest.mark.parametrize("form", [Diagonal, lambda lam: Dense(torch.diag_embed(lam))])
@pytest.mark.parametrize("a", [1e-3, 1e-6, 1e-9])
def test_a_direct_term_that_cancels_the_first_response(form: Callable[[torch.Tensor], Diagonal], a: float) -> None:
    """D = -C B leaves C A^l B from l = 1 on: a / sqrt(1 - a^2)."""
    one = torch.ones(1, 1, dtype=F64)
    got = float(h2_norm(System(form(torch.tensor([a], dtype=F64)), one, one, -one, 1.0)))
    assert got == pytest.approx(a / math.sqrt(1 - a * a), rel=1e-12)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("step", [1e-3, 1e-6, 1e-8])
def test_two_poles_that_nearly_cancel(discrete: bool, step: float) -> None:
    """1/(z - x) - 1/(z - y) has the energy (x - y)^2 (1 + x y) / ((1 - x^2) (1 - y^2) (1 - x y)), in s with x + y."""
    poles_ = torch.tensor([0.5, 0.5 + step] if discrete else [-1.0, -1.0 - step], dtype=F64)
    x, y = (Fraction(float(v)) for v in poles_)
    energy = (x - y) ** 2 * ((1 + x * y) / ((1 - x * x) * (1 - y * y) * (1 - x * y)) if discrete
                             else 1 / (-2 * x * y * (x + y)))  # fmt: skip
    system = System(Diagonal(poles_), torch.ones(2, 1), torch.tensor([[1.0, -1.0]]), 0, 1.0 if discrete else None)
    system = replace(system, delay=discrete)
    for form in (system, system.dense()):
        assert float(h2_norm(form)) == pytest.approx(math.sqrt(energy), rel=1e-7)  # poles differ by 1e-8 of their size


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12])
def test_a_hankel_value_next_to_the_circle(gap: float) -> None:
    z = (1 - gap) * complex(math.cos(0.3), math.sin(0.3))
    rest = float(1 - Fraction(z.real) ** 2 - Fraction(z.imag) ** 2)
    assert float(hankel_singular_values(one_pole(z))[0]) == pytest.approx(1 / rest, rel=1e-12)
    lam, one = torch.tensor([[z], [2.0]], dtype=C128), torch.ones(1, 1, dtype=C128)
    values = hankel_singular_values(System(Diagonal(lam), one, one, 0 * one, 1.0))  # beside an unstable one
    torch.testing.assert_close(values[:, 0], torch.tensor([1 / rest, math.inf], dtype=F64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", [closed, dense])
@pytest.mark.parametrize("discrete", [False, True])
def test_python_control(make: object, discrete: bool) -> None:
    control = pytest.importorskip("control")
    system = make(5, 2, 2, discrete=discrete)  # type: ignore[operator]
    form = real_form(system)  # of least order: control takes a singular Gramian for an unstable system
    form = form.delayed() if discrete else form
    matrices = [t.numpy() for t in (form.A.dense(), form.B, form.C, form.D)]
    want = control.norm(control.ss(*matrices, 1.0 if discrete else 0), 2)
    assert float(h2_norm(system)) == pytest.approx(want, rel=1e-9)  # its Lyapunov solver loses a digit or two


def test_infinite_is_said() -> None:
    assert h2_norm(one_pole(-1.0, d=1.0, dt=None)).reason.startswith("a continuous system whose D")
    for system in (one_pole(1.0), one_pole(0.0, dt=None), one_pole(2.0).dense()):
        norm = h2_norm(system)
        assert float(norm) == math.inf
        assert "not stable" in norm.reason
    lam = torch.tensor([[0.5], [1.5]], dtype=F64)
    ones = torch.ones(1, 1, dtype=F64)
    bank = h2_norm(System(Diagonal(lam), ones, ones, 0 * ones, 1.0))
    assert bank.value.tolist() == [pytest.approx(1 / math.sqrt(0.75)), math.inf]
    assert bank.reason == "system 1: not stable: a pole beyond the unit circle"


def test_legs_holds_orthonormal_memories() -> None:
    """The impulse responses of the states are orthonormal under exp(-t) dt; their own energies are 1 at most."""
    A, B = hippo("legs", 12)
    system = System(A, B[:, None], torch.eye(12, dtype=F64), torch.zeros(12, 1, dtype=F64))
    P = scipy.linalg.solve_continuous_lyapunov(A.numpy(), -np.outer(B, B))
    assert float(h2_norm(system)) == pytest.approx(math.sqrt(np.trace(P)), rel=1e-11)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("make", [closed, dense])
def test_gramian_factors_solve_lyapunov(make: object, discrete: bool) -> None:
    system = make(5, 2, 3, discrete=discrete)  # type: ignore[operator]
    A, B, C = system.A.dense(), system.B, system.C
    for L, M, Q in (
        (controllability_factor(system), A, B @ B.mH),
        (observability_factor(system), A.mH, C.mH @ C),
    ):
        P = L @ L.mH
        left = P - M @ P @ M.mH if discrete else -(M @ P + P @ M.mH)
        assert float((left - Q).abs().max()) < 1e-10 * float(P.abs().max() * max(1.0, float(A.abs().max())))


@pytest.mark.parametrize("discrete", [False, True])
def test_hankel_values_are_roots_of_the_eigenvalues_of_pq(discrete: bool) -> None:
    system = dense(6, 2, 2, discrete=discrete)
    A, B, C = (t.numpy() for t in (system.A.dense(), system.B, system.C))
    solve = scipy.linalg.solve_discrete_lyapunov if discrete else scipy.linalg.solve_continuous_lyapunov
    sign = 1 if discrete else -1
    P, Q = solve(A, sign * B @ B.T), solve(A.T, sign * C.T @ C)
    want = np.sort(np.sqrt(np.linalg.eigvals(P @ Q).real))[::-1]
    np.testing.assert_allclose(hankel_singular_values(system).numpy(), want, rtol=1e-8)  # P Q squares the condition


def test_hankel_values_are_those_of_the_hankel_matrix() -> None:
    """The map from inputs up to now to outputs from now on, as a long matrix H_ij = h_{i+j}."""
    system = closed(3, discrete=True, gap=0.3)
    system = replace(system, D=torch.zeros_like(system.D))
    h = impulse_response(system, 400)[0, 0].real.numpy()
    want = np.linalg.svd(scipy.linalg.hankel(h[:200], h[199:399]), compute_uv=False)[:6]
    np.testing.assert_allclose(hankel_singular_values(system).numpy(), want, rtol=1e-10)


def test_small_hankel_values_keep_their_digits() -> None:
    """Two nearly equal poles: the second value is 1e-9 of the first, and P alone would hold half of its digits."""
    lam = torch.tensor([0.5, 0.5 + 1e-8], dtype=F64)
    system = System(Diagonal(lam), torch.ones(2, 1), torch.tensor([[1.0, -1.0]]), torch.zeros(1, 1), 1.0)
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        a, b = (mp.mpf(float(x)) for x in lam)
        P = mp.matrix([[1 / (1 - x * y) for y in (a, b)] for x in (a, b)])
        Q = mp.matrix([[s * t / (1 - x * y) for t, y in ((1, a), (-1, b))] for s, x in ((1, a), (-1, b))])
        want = sorted((float(mp.sqrt(abs(v))) for v in mp.eig(P * Q)[0]), reverse=True)
    got = hankel_singular_values(system).tolist()
    assert got[0] == pytest.approx(want[0], rel=1e-6)  # itself the difference of two terms that agree to 1e-8
    assert got[1] == pytest.approx(want[1], rel=1e-6)


def test_hankel_of_an_unstable_system_is_infinite() -> None:
    lam = torch.tensor([[0.5, 0.2], [0.5, 1.5]], dtype=F64)
    ones = torch.ones(2, 1, dtype=F64)
    values = hankel_singular_values(System(Diagonal(lam), ones, ones.T, torch.zeros(1, 1), 1.0))
    assert bool(torch.isinf(values[1]).all())
    assert bool(torch.isfinite(values[0]).all())


def test_discrete_responses_are_what_simulation_gives() -> None:
    system = closed(4, 2, 3, discrete=True)
    for form in (system, system.delayed()):
        h, step = impulse_response(form, 9), step_response(form, 9)
        for column in range(3):
            u = torch.zeros(9, 3, dtype=F64)
            u[0, column] = 1
            assert_close(h[:, column].mT, form.simulate(u)[0])
            u[:, column] = 1
            assert_close(step[:, column].mT, form.simulate(u)[0])


def test_continuous_responses_are_exponentials() -> None:
    system = closed(3, 2, 2, discrete=False)
    system = replace(system, D=torch.randn(2, 2, dtype=F64).to(C128))
    A, B, C, D = (t.numpy() for t in (system.A.dense(), system.B, system.C, system.D))
    t = [0.0, 0.3, 2.0, 40.0]
    want = np.stack([C @ scipy.linalg.expm(x * A) @ B for x in t], -1)
    held = np.stack([C @ np.linalg.solve(A, (scipy.linalg.expm(x * A) - np.eye(6)) @ B) + D for x in t], -1)
    for form in (system, system.dense()):
        assert_close(impulse_response(form, t), torch.from_numpy(want))
        assert_close(step_response(form, t), torch.from_numpy(held))


def test_the_step_response_settles_at_the_direct_current_gain() -> None:
    system = legs(8, torch.randn(1, 8, dtype=F64))
    assert_close(step_response(system, [60.0])[..., 0], dc_gain(system))
    integrator = System(Dense(torch.zeros(1, 1)), torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1))
    assert step_response(integrator, [0.0, 2.0, 5.0]).flatten().tolist() == pytest.approx([0, 2, 5])


def test_poles_and_time_constants() -> None:
    assert_close(poles(legs(6, unit(6, 0))).real.sort().values, -torch.arange(6.0, 0, -1, dtype=F64))
    assert time_constants(legs(3, unit(3, 0))).sort().values.tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    lam = torch.tensor([math.exp(-1 / 50), 0.0, 1.0, -1.2, 1 - 1e-13], dtype=F64)
    tau = time_constants(System(Diagonal(lam), torch.ones(5, 1), torch.ones(1, 5), torch.zeros(1, 1), 1.0))
    assert tau[:4].tolist() == [pytest.approx(50), 0.0, math.inf, math.inf]
    assert float(tau[4]) == pytest.approx(1 / float(1 - Fraction(1 - 1e-13)), rel=1e-10)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="when must be a whole number"):
        impulse_response(one_pole(0.5), [1.0])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        step_response(one_pole(0.5), 0)
    with pytest.raises(TypeError, match="asked at times"):
        impulse_response(one_pole(-1.0, dt=None), 5)
    with pytest.raises(ValueError, match="from zero on"):
        step_response(one_pole(-1.0, dt=None), [-1.0])
    with pytest.raises(TypeError, match="expected a System"):
        h2_norm("system")  # type: ignore[arg-type]
