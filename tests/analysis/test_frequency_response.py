"""The transfer function in every form against one dense solve a frequency, a Fourier transform, and gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transfer_cases import C128, F64, closed, dense, legs, legs_dplr, one_pole, response, unit

from helpers import assert_close
from resolvent.analysis import (
    Box,
    balanced_truncation,
    dc_gain,
    frequency_response,
    hankel_singular_values,
    hinf_norm,
    impulse_response,
    step_response,
    system_box,
)
from resolvent.analysis.systems.frequency_response import _solve
from resolvent.ssm import DPLR, Dense, Diagonal, System, discretise, dplr, hippo

W = torch.tensor([-2.0, 0.0, 0.3, 1.0, 3.1], dtype=F64)


def dplr_bank(discrete: bool) -> System:
    lam, P, B, _ = dplr("legs", 8, halves=False)
    system = System(DPLR(lam, P, P), B[:, None], torch.randn(3, 2, 8, dtype=C128), torch.randn(2, 1, dtype=F64))
    return discretise(system, 0.1, "bilinear") if discrete else system


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_every_form_equals_a_dense_solve(discrete: bool, shape: tuple[int, int]) -> None:
    for system in (closed(5, *shape, discrete=discrete), dense(7, *shape, discrete=discrete)):
        forms = [system, system.dense(), system.real()] + ([system.delayed()] if discrete else [])
        want = torch.from_numpy(np.stack([response(system, float(w)) for w in W], -1))
        for form in forms:
            assert_close(frequency_response(form, W), want)


@pytest.mark.parametrize("discrete", [False, True])
def test_woodbury_over_a_bank(discrete: bool) -> None:
    system = dplr_bank(discrete)
    G = frequency_response(system, W)
    assert G.shape == (3, 2, 1, 5)
    assert_close(G, frequency_response(system.dense(), W))


def test_woodbury_where_a_frequency_meets_the_diagonal() -> None:
    """legt: lam lies on the axis without being a pole; the sums are singular there, G is not."""
    lam, P, B, _ = dplr("legt", 6, halves=False)
    system = System(DPLR(lam, P, P), B[:, None], torch.randn(1, 6, dtype=C128), torch.zeros(1, 1))
    w = torch.cat([lam.imag, torch.tensor([0.5], dtype=F64)])
    assert_close(frequency_response(system, w), frequency_response(system.dense(), w))


def test_frequencies_of_their_own_for_each_system() -> None:
    system = closed(4, discrete=True)
    bank = System(Diagonal(system.A.lam.expand(3, 8)), system.B, system.C, system.D, 1.0)
    w = torch.rand(3, 6, dtype=F64)
    for form in (bank, bank.dense()):
        G = frequency_response(form, w)
        assert G.shape == (3, 1, 1, 6)
        for row in range(3):
            assert_close(G[row], frequency_response(system, w[row]))


def test_it_is_the_fourier_transform_of_the_impulse_response() -> None:
    system = closed(6, 2, 2, discrete=True, gap=0.2)
    l = torch.arange(4000, dtype=F64)
    h = impulse_response(system, 4000)
    want = (h[..., None, :] * torch.exp(-1j * W[:, None] * l)).sum(-1)
    assert_close(frequency_response(system, W), want)
    assert_close(frequency_response(system.delayed(), W), want)


def test_gradients_flow_through_every_form() -> None:
    """Against the dense solve, which autograd differentiates by itself."""
    lam, P, B, _ = dplr("legs", 6, halves=False)
    parts = [t.clone().requires_grad_() for t in (lam, P, B[:, None], torch.randn(1, 6, dtype=C128), W)]

    def gradients(make: str) -> list[torch.Tensor]:
        lam, P, B, C, w = parts
        system = System(DPLR(lam, P, P), B, C, torch.zeros(1, 1))
        if make == "diagonal":
            system = System(Diagonal(lam), B, C, torch.zeros(1, 1))
        G = _solve(system, w) if make == "solved" else frequency_response(system, w)[0, 0, :, None, None]
        used = [lam, B, C, w] if make == "diagonal" else parts
        return list(torch.autograd.grad((G * torch.arange(5)[:, None, None]).abs().sum(), used))

    assert_close(gradients("dplr"), gradients("solved"), gradient=True)
    assert all(bool(torch.isfinite(g.abs()).all()) for g in gradients("diagonal"))


def test_a_dense_system_that_wants_gradients() -> None:
    system = dense(5, discrete=True)
    A = system.A.dense().clone().requires_grad_()
    G = frequency_response(System(Dense(A), system.B, system.C, system.D, 1.0), W)
    assert_close(G.detach(), frequency_response(system, W))
    assert float(torch.autograd.grad(G.abs().sum(), A)[0].abs().max()) > 0


def test_legs_at_direct_current_passes_c0() -> None:
    C = torch.randn(2, 16, dtype=F64)
    for system in (legs(16, C), legs_dplr(16, C)):
        assert_close(dc_gain(system).real, C[:, :1])
    assert dc_gain(legs(16, C)).dtype == F64


def test_a_pole_on_the_edge_is_infinite_there_and_a_silent_one_is_not() -> None:
    assert float(dc_gain(one_pole(1.0)).abs()) == math.inf
    assert float(dc_gain(one_pole(1.0, b=0.0, d=3.0))) == 3.0
    assert float(dc_gain(one_pole(1.0).dense()).abs()) == math.inf


def test_float32_stays_float32() -> None:
    A, B = (t.float() for t in hippo("legs", 4))
    G = frequency_response(System(A, B[:, None], torch.ones(1, 4), torch.zeros(1, 1)), [0.5])
    assert G.dtype == torch.complex64
    assert_close(G, frequency_response(legs(4, torch.ones(1, 4, dtype=F64)), [0.5]), dtype=torch.float32)


@pytest.mark.parametrize(
    ("omega", "error", "words"),
    [
        ([], ValueError, "omega is empty"),
        (["a"], TypeError, "real numbers"),
        (torch.tensor([1j]), TypeError, "real numbers"),
        ([math.inf], ValueError, "finite"),
    ],
)
def test_bad_frequencies(omega: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        frequency_response(legs(4, unit(4, 0)), omega)


def test_bad_systems() -> None:
    with pytest.raises(TypeError, match="expected a System, got ndarray"):
        frequency_response(np.eye(2), [0.0])  # type: ignore[arg-type]
    varying = System(torch.zeros(3, 2, 2), torch.zeros(3, 2, 1), torch.zeros(3, 1, 2), torch.zeros(3, 1, 1), 1.0,
                     time_varying=True)  # fmt: skip
    with pytest.raises(ValueError, match="varies in time"):
        frequency_response(varying, [0.0])
    with pytest.raises(ValueError, match="B holds NaN"):
        frequency_response(one_pole(0.5, b=math.nan), [0.0])


@pytest.mark.parametrize("discrete", [False, True])
def test_the_units_of_states_do_not_matter(discrete: bool) -> None:
    """States in units from 1e-9 to 1e9 (pascals beside metres); powers of two change no digit of the map itself."""
    plain = dense(6, 2, 2, discrete=discrete)
    s = 2.0 ** torch.tensor([30.0, -30.0, 0.0, 17.0, -25.0, 8.0], dtype=F64)
    A = plain.A.dense() / s * s[:, None]
    odd = System(Dense(A), s[:, None] * plain.B, plain.C / s, plain.D, plain.dt, plain.delay)
    want = torch.from_numpy(np.stack([response(plain, float(w)) for w in W], -1))
    assert_close(frequency_response(odd, W), want)
    assert_close(dc_gain(odd), dc_gain(plain))
    found, norm = hinf_norm(odd), hinf_norm(plain)
    assert float(norm.lower) * (1 - 1e-9) <= float(found) <= float(norm.upper) * (1 + 1e-9)
    assert float(found.upper) <= float(found.lower) * (1 + 2e-6)
    if not discrete:
        times = torch.tensor([0.0, 0.3, 2.0], dtype=F64)
        assert_close(impulse_response(odd, times), impulse_response(plain, times))
        assert_close(step_response(odd, times), step_response(plain, times))


@pytest.mark.parametrize("dt", [None, 1.0])
def test_a_system_without_states_is_its_direct_term(dt: float | None) -> None:
    """As `control.ss([], [], [], D)` comes."""
    D = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=F64)
    none = torch.zeros(0, 2, dtype=F64)
    system = System(Dense(torch.zeros(0, 0, dtype=F64)), none, none.T, D, dt)
    assert_close(frequency_response(system, [0.3])[..., 0].real, D)
    assert float(hinf_norm(system)) == pytest.approx(float(torch.linalg.matrix_norm(D, 2)))
    assert hankel_singular_values(system).shape == (0,)
    assert balanced_truncation(system, tolerance=0.1).order == 0


@pytest.mark.parametrize(("m", "p"), [(0, 2), (2, 0)])
def test_a_system_without_inputs_or_outputs_answers_with_nothing(m: int, p: int) -> None:
    A, B, C = 0.5 * torch.eye(3), torch.zeros(3, m), torch.zeros(p, 3)
    system = System(A, B, C, torch.zeros(p, m), dt=1.0)
    assert frequency_response(system, [0.1, 0.2]).shape == (p, m, 2)
    box = system_box(system, Box(torch.zeros(1, 4, m, dtype=torch.float64), torch.ones(1, 4, m, dtype=torch.float64)))
    assert box.center.shape == box.radius.shape == (1, 4, p)
