"""H-infinity: closed forms, python-control, the Hamiltonian method, and brackets that hold."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from transfer_cases import C128, F64, closed, dense, legs, one_pole, response, unit

from resolvent.analysis import frequency_response, hinf_norm
from resolvent.analysis.matrices.boundary import Axis, Circle, phases
from resolvent.analysis.matrices.exact import circle_gap, one_minus
from resolvent.analysis.matrices.peak import bounds
from resolvent.ssm import Dense, Diagonal, System, hippo


@pytest.mark.parametrize("lam", [0.0, 0.5, -0.9, 0.3 + 0.4j, 1 - 1e-8, -(1 - 1e-12), (1 - 1e-8) * np.exp(2j)])
@pytest.mark.parametrize("delay", [False, True])
def test_one_pole_discrete(lam: complex, delay: bool) -> None:
    """|c b| / (1 - |lam|), with the last digits of 1 - |lam| kept."""
    system = replace(one_pole(complex(lam), b=2j, c=-1.5), delay=delay)
    exact = 3 / float(_gap(complex(system.A.lam[0])))
    norm = hinf_norm(system)
    assert float(norm) == pytest.approx(exact, rel=1e-10)
    assert norm.lower <= exact * (1 + 1e-12)
    assert norm.upper >= exact * (1 - 1e-12)
    assert abs(lam) == 0 or abs(np.exp(1j * float(norm.frequency)) - lam / abs(lam)) < 1e-7


def _gap(lam: complex) -> float:
    size = Fraction(lam.real) ** 2 + Fraction(lam.imag) ** 2
    return float(1 - size) / (1 + math.sqrt(size))


@pytest.mark.parametrize("lam", [-1.0, -1e-9, -0.5 + 300j, -1e-9 - 1e5j])
def test_one_pole_continuous(lam: complex) -> None:
    norm = hinf_norm(one_pole(complex(lam), b=2.0, c=3.0, dt=None))
    assert float(norm) == pytest.approx(6 / -complex(lam).real, rel=1e-12)
    assert float(norm.frequency) == pytest.approx(complex(lam).imag, abs=1e-12)


def test_the_direct_term_alone_and_at_infinity() -> None:
    """G = 2 - 1/(s + 1) rises from 1 to 2 at infinite frequency."""
    norm = hinf_norm(one_pole(-1.0, c=-1.0, d=2.0, dt=None))
    assert float(norm) == pytest.approx(2.0, rel=1e-12)
    assert float(norm.frequency) == math.inf
    silent = one_pole(0.5, b=0.0, d=-3.0)
    assert float(hinf_norm(silent)) == 3.0
    assert float(hinf_norm(one_pole(0.5, b=0.0))) == 0.0


def test_an_all_pass_is_flat_and_still_bracketed() -> None:
    """prod (1 - a z)/(z - a): the modulus is 1 everywhere, the worst case of the search."""
    system = replace(one_pole(0.5, c=0.75, d=-0.5), delay=True)
    norm = hinf_norm(system, rtol=1e-6)
    assert float(norm.lower) <= 1 + 1e-14
    assert 1 - 1e-14 <= float(norm.upper) <= 1 + 1e-6
    assert norm.reason == ""


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_phase_and_hamiltonian_agree(discrete: bool, shape: tuple[int, int], seed: int) -> None:
    diagonal = closed(6, *shape, discrete=discrete, gap=1e-3, seed=seed)
    for system in (diagonal, dense(9, *shape, discrete=discrete, seed=seed)):
        phase = hinf_norm(system)
        other = hinf_norm(system, method="hamiltonian")
        assert float(phase.upper / phase.lower) - 1 <= 2e-6
        assert phase.lower <= other.upper
        assert other.lower <= phase.upper * (1 + 1e-12)
        at = np.linalg.norm(response(system, float(phase.frequency)), 2)
        assert float(phase) == pytest.approx(at, rel=1e-9)  # the value is one that G takes
        assert float(hinf_norm(system.dense())) == pytest.approx(float(phase), rel=1e-9)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_frequency_exceeds_the_upper_bound(discrete: bool, seed: int) -> None:
    system = closed(4, 2, 2, discrete=discrete, gap=1e-4, seed=seed)
    norm = hinf_norm(system, rtol=1e-3)
    lam = system.A.lam
    place, width = (lam.angle(), 1 - lam.abs()) if discrete else (lam.imag, -lam.real)
    w = (place[:, None] + width[:, None] * torch.linspace(-30, 30, 4001, dtype=F64)).flatten()
    size = torch.linalg.matrix_norm(frequency_response(system, w).movedim(-1, 0), 2)
    assert float(size.max()) <= float(norm.upper)
    assert float(size.max()) >= float(norm.lower) * (1 - 1e-3)


@pytest.mark.parametrize("discrete", [False, True])
def test_the_inequality_that_the_bracket_rests_on(discrete: bool) -> None:
    """|G(w)| >= M cos(phase(w) - phase(w0)) for random rational functions, with equality for one pole."""
    for seed in range(20):
        system = closed(3, discrete=discrete, gap=0.1, seed=seed)
        lam = system.A.lam.numpy()
        edge = Circle(lam, False) if discrete else Axis(lam, False)
        norm = hinf_norm(system, rtol=1e-9)
        w = np.linspace(-math.pi, math.pi, 20001) if discrete else np.linspace(-30, 30, 20001)
        away = np.abs(phases(edge, w) - phases(edge, np.asarray([float(norm.frequency)])))
        G = frequency_response(system, w).abs()[0, 0].numpy()
        near = away < math.pi / 2
        assert near.sum() > 10
        assert (G[near] >= float(norm.lower) * np.cos(away[near]) * (1 - 1e-6) - 1e-9).all()
    alone = one_pole(0.7, d=-1 / 1.7) if discrete else one_pole(-0.7, dt=None)  # zero opposite to the pole
    edge = Circle(np.asarray([0.7 + 0j]), False) if discrete else Axis(np.asarray([-0.7 + 0j]), False)
    w = np.linspace(-2.5, 2.5, 11)
    want = np.cos(phases(edge, w)) * (1 / 0.3 - 1 / 1.7 if discrete else 1 / 0.7)
    np.testing.assert_allclose(frequency_response(alone, w).abs()[0, 0].numpy(), want, rtol=1e-12)


def test_the_bound_between_two_neighbours_is_the_largest_that_both_allow() -> None:
    x = np.linspace(0, 1, 200001)
    for fa, fb, W in ((1.0, 1.0, 0.7), (1.0, 0.6, 1.2), (0.3, 1.0, 0.4), (1.0, 0.95, 1e-3)):
        allowed = np.minimum(fa / np.cos(W * x), fb / np.cos(W * (1 - x))).max()
        got = float(bounds(np.asarray([fa]), np.asarray([fb]), np.asarray([W]))[0])
        assert got == pytest.approx(max(allowed, fa, fb), rel=1e-6)
    assert math.isinf(bounds(np.ones(1), np.ones(1), np.asarray([2.0]))[0])


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_python_control(discrete: bool, shape: tuple[int, int]) -> None:
    control = pytest.importorskip("control")
    for seed in range(3):
        system = dense(6, *shape, discrete=discrete, seed=seed)
        form = system.delayed() if discrete else system
        matrices = [t.numpy() for t in (form.A.dense(), form.B, form.C, form.D)]
        want = control.norm(control.ss(*matrices, 1.0 if discrete else 0), "inf", tol=1e-9)
        assert float(hinf_norm(system)) == pytest.approx(want, rel=1e-7)  # its bisection is absolute, to 1e-9


def test_256_diagonal_states_with_poles_at_a_hundred_millionth() -> None:
    """In well under a second; a search over a grid would take minutes, and a busy machine may take its time."""
    system = closed(128, discrete=True, gap=1e-8)
    start = time.process_time()
    norm = hinf_norm(system)
    assert time.process_time() - start < 5.0
    assert float(norm.upper / norm.lower) - 1 < 2e-6
    lam = system.A.lam
    at = (system.C[0] * system.B[:, 0] / (1 - lam * torch.exp(-1j * norm.frequency))).sum() + system.D[0, 0]
    assert float(norm) == pytest.approx(float(at.abs()), rel=1e-6)  # the plain sum loses 8 digits next to the pole


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e100])
def test_level_sets_of_gains_of_any_size(scale: float) -> None:
    """2 scale / (1 - 1/2) at frequency zero; C = (1, -1) hides both states, so that G = 0 and no level is positive."""
    B, C = torch.ones(2, 1, dtype=F64), torch.tensor([[1.0, 1.0 if scale else -1.0]], dtype=F64)
    system = System(0.5 * torch.eye(2, dtype=F64), (scale or 1.0) * B, C, 0, dt=1.0)
    found = hinf_norm(system, method="hamiltonian")
    assert float(found.value) == pytest.approx(4 * scale, rel=1e-6, abs=1e-15 if not scale else 0)
    assert float(found.upper) == pytest.approx(4 * scale, rel=1e-5, abs=1e-14 if not scale else 0)


def test_a_bank_has_a_value_for_each_system() -> None:
    lam = torch.tensor([[0.5], [0.9], [1.1], [1.0]], dtype=F64)
    ones = torch.ones(1, 1, dtype=F64)
    norm = hinf_norm(System(Diagonal(lam), ones, ones, 0 * ones, torch.full((4,), 0.1)))
    torch.testing.assert_close(norm.value, torch.tensor([2.0, 10.0, math.inf, math.inf], dtype=F64), rtol=1e-12, atol=0)
    assert norm.reason == (
        "system 2: not stable: a pole beyond the unit circle; system 3: not stable: a pole on the unit circle"
    )


@pytest.mark.parametrize("system", [one_pole(1.0), one_pole(1.5), one_pole(0.0, dt=None), one_pole(0.1 + 5j, dt=None)])
def test_unstable_is_infinite_with_a_reason(system: System) -> None:
    for form in (system, system.dense(), system.real()):
        norm = hinf_norm(form)
        assert float(norm.lower) == float(norm.upper) == math.inf
        assert "not stable" in norm.reason


def test_states_that_cannot_show_do_not_count() -> None:
    """fout keeps an undriven oscillator of frequency zero; an unstable state without an output is no part of G."""
    A, B = hippo("fout", 6)
    system = System(A, B[:, None], torch.ones(1, 6, dtype=F64), torch.zeros(1, 1))
    driven = [0, 2, 3, 4, 5]
    part = System(A[driven][:, driven], B[driven][:, None], torch.ones(1, 5, dtype=F64), torch.zeros(1, 1))
    assert float(hinf_norm(system)) == pytest.approx(float(hinf_norm(part)), rel=1e-12)
    assert math.isfinite(float(hinf_norm(system)))
    lam, C = torch.tensor([0.5, 2.0]), torch.tensor([[1.0, 0.0]])
    hidden = System(Diagonal(lam), torch.ones(2, 1), C, torch.zeros(1, 1), 1.0)
    assert float(hinf_norm(hidden)) == pytest.approx(2.0)


def test_a_shift_register_is_a_polynomial() -> None:
    """h = (1, 2, 3): all poles at zero, the gain is largest at frequency zero."""
    A = torch.diag(torch.ones(2, dtype=F64), -1)
    system = System(Dense(A), unit(3, 0).T, torch.tensor([[1.0, 2.0, 3.0]], dtype=F64), torch.zeros(1, 1), 1.0)
    assert float(hinf_norm(system)) == pytest.approx(6.0, rel=1e-12)


@pytest.mark.parametrize("n", [1, 4, 16, 64])
def test_the_state_of_legs_never_exceeds_its_input(n: int) -> None:
    """sup ||(i w - A)^-1 B|| = 1, at w = 0."""
    norm = hinf_norm(legs(n, torch.eye(n, dtype=F64)))
    assert float(norm) == pytest.approx(1.0, rel=1e-12)
    assert abs(float(norm.frequency)) < 1e-6
    assert float(norm.upper) < 1 + 2e-6


def test_differences_keep_their_digits_next_to_the_circle() -> None:
    a, b = np.exp(1j) * (1 - 1e-12), np.exp(1j * (1 + 1e-11)) * (1 - 1e-13)
    x, y, u, v = (Fraction(float(t)) for t in (a.real, a.imag, b.real, b.imag))
    got = complex(one_minus(np.asarray(a), np.asarray(b)))
    assert got.real == pytest.approx(float(1 - x * u - y * v), rel=1e-14)
    assert got.imag == pytest.approx(float(x * v - y * u), rel=1e-14)
    assert float(circle_gap(np.asarray(1 - 1e-15))) == pytest.approx(float(1 - Fraction(1 - 1e-15)), rel=1e-14)


def test_bad_input() -> None:
    system = one_pole(0.5)
    with pytest.raises(ValueError, match="rtol must be above"):
        hinf_norm(system, rtol=0.0)
    with pytest.raises(TypeError, match="rtol must be a number"):
        hinf_norm(system, rtol="small")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method must be one of 'phase', 'hamiltonian'"):
        hinf_norm(system, method="grid")
    with pytest.raises(TypeError, match="expected a System"):
        hinf_norm(torch.eye(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds no system"):
        hinf_norm(System(Diagonal(torch.zeros(0, 1)), torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1), 1.0))


def test_a_layers_worth_of_systems_in_single_precision() -> None:
    lam = torch.polar(torch.rand(5, 6) * 0.5 + 0.4, torch.rand(5, 6) * 3)
    B, C = (torch.randn(s, dtype=torch.complex64) for s in ((5, 6, 1), (5, 1, 6)))
    system = System(Diagonal(lam), B, C, torch.randn(5, 1, 1), torch.rand(5))
    norm = hinf_norm(system)
    assert norm.value.shape == (5,)
    for i in range(5):
        one = System(Diagonal(lam[i]), system.B[i], system.C[i], system.D[i], 1.0)
        assert float(norm.value[i]) == pytest.approx(float(hinf_norm(one, method="hamiltonian")), rel=1e-6)
    assert system.dtype != C128
