"""Discretisation against scipy, closed forms and quadrature, down to steps and eigenvalues of zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ssm import DPLR, Dense, Diagonal, System, diagonal_step, discretise, dplr, expm1_over, hippo
from resolvent.ssm.discretise import METHODS, expm1

F64, C128 = torch.float64, torch.complex128
REAL = [0.0, 1e-300, -1e-12, 1e-8, -3e-4, 0.1, -0.499999, 0.500001, -1.0, 2.5, -20.0, 10.0]
IMAGINARY = [0.0, 1e-9, -0.3, 0.51, math.pi, 2 * math.pi, -2 * math.pi + 1e-7, 4 * math.pi, 25.0]


def random_parts(n: int = 4, m: int = 2, p: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    A = torch.randn(n, n, dtype=F64) - 2 * torch.eye(n, dtype=F64)
    return A, *(torch.randn(*s, dtype=F64) for s in ((n, m), (p, n), (p, m)))


def integrals(z: Tensor, order: int) -> Tensor:
    """The derivatives of (e^z - 1)/z = int_0^1 e^(s z) ds by quadrature: int s^order e^(s z) ds."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    s = torch.from_numpy((nodes + 1) / 2)
    return (torch.from_numpy(weights / 2) * s**order * torch.exp(s * z[..., None])).sum(-1)


def derivatives(z: Tensor) -> list[Tensor]:
    """Value, first and second derivative of `expm1_over` along the real direction."""
    one = torch.ones_like(z)
    f: Callable[[Tensor], Tensor] = expm1_over
    found = []
    for _ in range(3):
        found.append(f(z))
        f = (lambda g: lambda x: torch.func.jvp(g, (x,), (one,))[1])(f)
    return found


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_expm1_over_and_its_derivatives_real(dtype: torch.dtype) -> None:
    z = torch.tensor(REAL, dtype=dtype)
    for order, got in enumerate(derivatives(z)):
        want = integrals(z.to(F64), order)
        tolerance = 1e-13 if dtype == F64 else 3e-6
        np.testing.assert_allclose(got.to(F64).numpy(), want.numpy(), rtol=tolerance)


@pytest.mark.parametrize("dtype", [C128, torch.complex64])
def test_expm1_over_and_its_derivatives_complex(dtype: torch.dtype) -> None:
    """Relative to |z|^-1, the size of the quotient's parts: at z = 2 pi i k the exact value is zero."""
    z = torch.tensor([complex(x, y) for x in REAL[:-1] for y in IMAGINARY], dtype=dtype)
    for order, got in enumerate(derivatives(z)):
        want = integrals(z.to(C128), order)
        error = (got.to(C128) - want).abs() / want.abs().clamp_min(0.01)
        assert float(error.max()) < (1e-12 if dtype == C128 else 1e-4)


def test_expm1_is_exact_near_the_periods() -> None:
    z = torch.tensor([complex(0, 2 * math.pi), complex(1e-18, 1e-20), complex(-800.0, 1.0)], dtype=C128)
    got = expm1(z)
    slip = math.sin(2 * math.pi)  # how far the float lies from the true period
    assert_close(got[0], torch.tensor(complex(-2 * math.sin(math.pi) ** 2, slip), dtype=C128))
    assert_close(got[1], z[1])
    assert_close(got[2], torch.tensor(-1 + 0j, dtype=C128))


@pytest.mark.parametrize("dtype", [F64, C128])
def test_expm1_over_gradcheck(dtype: torch.dtype) -> None:
    values = [0.0, 1e-7, 0.3, -0.45, 0.6, -4.0] if dtype == F64 else [0j, 1e-7j, 0.3 - 0.2j, -0.6 + 3j, 6.28j]
    z = torch.tensor(values, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(expm1_over, (z,))
    assert torch.autograd.gradgradcheck(expm1_over, (z,))


@pytest.mark.parametrize(
    ("a", "dt", "ratio"), [(1, 0.1, 0.951626), (1, 1e-3, 0.999500), (16, 0.1, 0.498815), (16, 1e-3, 0.992042)]
)
@pytest.mark.parametrize("form", [Diagonal, Dense])
def test_held_input_tends_to_the_continuous_one(a: int, dt: float, ratio: float, form: type) -> None:
    """B_bar / dt for A = -a: it tends to B, not to infinity, as dt vanishes."""
    lam = torch.tensor([-float(a)], dtype=F64)
    one, zero = torch.ones(1, 1, dtype=F64), torch.zeros(1, 1, dtype=F64)
    s = System(form(lam if form is Diagonal else lam[None]), one, one, zero)
    assert float(discretise(s, dt).B) / dt == pytest.approx(ratio, abs=5e-7)  # six decimals are published
    assert float(discretise(s, dt).B) == pytest.approx(-math.expm1(-a * dt) / a, rel=1e-13)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
@pytest.mark.parametrize("dt", [1e-6, 0.01, 0.7])
def test_dense_matches_scipy(method: str, dt: float) -> None:
    A, B, C, D = random_parts()
    got = discretise(System(A, B, C, D), dt, method)
    want = scipy.signal.cont2discrete(tuple(t.numpy() for t in (A, B, C, D)), dt, method=method)
    assert_close(got.A.dense(), torch.from_numpy(want[0]))
    assert_close(got.B, torch.from_numpy(want[1]))
    assert got.dt == dt
    assert got.C.data_ptr() == C.data_ptr()


def test_zero_order_hold_of_legs_matches_scipy() -> None:
    A, B = hippo("legs", 64)
    s = System(A, B[:, None], torch.ones(1, 64, dtype=F64) / 8, torch.zeros(1, 1, dtype=F64))
    for dt in (0.01, 0.1):
        want = scipy.signal.cont2discrete((A.numpy(), B[:, None].numpy(), s.C.numpy(), s.D.numpy()), dt)
        got = discretise(s, dt)
        assert_close((got.A.dense(), got.B), (torch.from_numpy(want[0]), torch.from_numpy(want[1])))


@pytest.mark.parametrize("method", METHODS)
def test_singular_a(method: str) -> None:
    """The double integrator, whose A^-1 does not exist."""
    A = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64)
    B = torch.tensor([[0.0], [1.0]], dtype=F64)
    got = discretise(System(A, B, B.mT, torch.zeros(1, 1, dtype=F64)), 0.3, method)
    first = {"zoh": 0.3**2 / 2, "bilinear": 0.3**2 / 2, "euler": 0.0}[method]
    assert_close(got.A.dense(), torch.tensor([[1.0, 0.3], [0.0, 1.0]], dtype=F64))
    assert_close(got.B, torch.tensor([[first], [0.3]], dtype=F64))


@pytest.mark.parametrize("method", METHODS)
def test_diagonal_is_the_dense_result(method: str) -> None:
    lam = torch.tensor([0, 1e-9, -0.5 + 3j, -2 - 1j, 1e-4j, -30 + 200j], dtype=C128)
    B, C, D = (torch.randn(*s, dtype=C128) for s in ((6, 2), (3, 6), (3, 2)))
    s = System(Diagonal(lam), B, C, D)
    got, want = discretise(s, 0.05, method), discretise(s.dense(), 0.05, method)
    assert isinstance(got.A, Diagonal)
    assert_close((got.A.dense(), got.B), (want.A.dense(), want.B))


@pytest.mark.parametrize("name", ["legs", "legt", "lagt", "fout"])
@pytest.mark.parametrize("method", METHODS)
def test_dplr_is_the_dense_result(name: str, method: str) -> None:
    A, B = hippo(name, 16)
    lam, P, b, V = dplr(name, 16, halves=False)
    C, D = torch.ones(1, 16, dtype=F64), torch.zeros(1, 1, dtype=F64)
    got = discretise(System(DPLR(lam, P, P), b[:, None], C.to(C128) @ V, D), 0.05, method)
    want = discretise(System(A, B[:, None], C, D), 0.05, method)
    assert isinstance(got.A, DPLR if method == "bilinear" else Dense)
    assert_close(V @ got.A.dense() @ V.mH, want.A.dense().to(C128))
    assert_close(V @ got.B, want.B.to(C128))


def test_euler_is_mambas_rule() -> None:
    lam, B = -torch.rand(4, dtype=F64), torch.randn(4, 1, dtype=F64)
    got = discretise(System(Diagonal(lam), B, B.mT, torch.zeros(1, 1, dtype=F64)), 0.1, "euler")
    assert_close((got.A.dense(), got.B), (torch.diag(torch.exp(0.1 * lam)), 0.1 * B))


@pytest.mark.parametrize("form", ["diagonal", "dplr", "dense"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bank", [(), (3,), (2, 1)])
def test_steps_broadcast_against_the_bank(form: str, method: str, bank: tuple[int, ...]) -> None:
    lam, P, Q = (torch.randn(*bank, *s, dtype=C128) for s in ((4,), (4, 1), (4, 1)))
    A = {"diagonal": Diagonal(lam), "dplr": DPLR(lam, P, Q), "dense": Dense(torch.diag_embed(lam) - P @ Q.mH)}[form]
    B, C, D = (torch.randn(*bank, *s, dtype=C128) for s in ((4, 2), (1, 4), (1, 2)))
    dt = torch.rand(3, dtype=F64) + 0.01
    got = discretise(System(A, B, C, D), dt, method)
    assert got.bank == torch.broadcast_shapes(bank, (3,))
    assert got.C.shape[:-2] == got.D.shape[:-2] == got.B.shape[:-2] == got.bank
    for i in range(3):
        one = discretise(System(A, B, C, D), float(dt[i]), method)
        j = i if bank == (3,) else 0
        pick = (Ellipsis, j, slice(None), slice(None)) if bank else (Ellipsis,)
        assert_close(got.B[..., i, :, :], one.B[pick])
        assert_close(got.A.dense()[..., i, :, :], one.A.dense()[pick])


@pytest.mark.parametrize("method", METHODS)
def test_vanishing_step(method: str) -> None:
    """A_bar -> I + dt A and B_bar -> dt B, also in the gradient with respect to dt."""
    A, B, C, D = random_parts()
    for system in (System(A, B, C, D), System(Diagonal(torch.linalg.eigvals(A)), B, C, D)):
        dt = torch.tensor(1e-14, dtype=F64, requires_grad=True)
        got = discretise(system, dt, method)
        assert_close(got.B, 1e-14 * system.B)
        weight = torch.randn_like(got.B)
        (slope,) = torch.autograd.grad((weight.conj() * got.B).real.sum(), dt)
        assert_close(slope, (weight.conj() * system.B).real.sum())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["diagonal", "dplr", "dense"])
def test_gradients(method: str, form: str) -> None:
    lam, P, Q, B = (torch.randn(*s, dtype=C128) for s in ((3,), (3, 1), (3, 1), (3, 1)))
    lam[0] = 0
    C, D = torch.ones(1, 3, dtype=C128), torch.zeros(1, 1, dtype=C128)
    dt = torch.tensor(0.1, dtype=F64)

    def run(lam: Tensor, P: Tensor, Q: Tensor, B: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        dense = torch.diag_embed(lam) - P @ Q.mH
        A = {"diagonal": Diagonal(lam), "dplr": DPLR(lam, P, Q), "dense": Dense(dense)}[form]
        got = discretise(System(A, B, C, D), dt, method)
        return got.A.dense(), got.B

    inputs = tuple(t.requires_grad_() for t in (lam, P, Q, B, dt))
    assert torch.autograd.gradcheck(run, inputs)
    if form == "diagonal":
        assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("method", METHODS)
def test_diagonal_step_takes_one_step_per_state(method: str) -> None:
    lam, dt = torch.randn(5, dtype=C128), torch.rand(2, 5, dtype=F64)
    lam_bar, gain = diagonal_step(lam, dt, method)
    ones = torch.ones(1, 1, dtype=C128)
    for i in range(2):
        for j in range(5):
            want = discretise(System(Dense(lam[j].reshape(1, 1)), ones, ones, ones), float(dt[i, j]), method)
            assert_close((lam_bar[i, j].reshape(1, 1), gain[i, j].reshape(1, 1)), (want.A.dense(), want.B))


def test_works_under_vmap_and_compile() -> None:
    lam, dt = torch.randn(4, dtype=F64), torch.rand(3, dtype=F64)
    B = torch.ones(4, 1, dtype=F64)

    def gains(step: Tensor) -> Tensor:
        return discretise(System(Diagonal(lam), B, B.mT, B[:1]), step).B

    want = torch.stack([gains(t) for t in dt])
    assert_close(torch.func.vmap(gains)(dt), want)
    assert_close(torch.compile(gains, backend="aot_eager", fullgraph=True)(dt), want)


def test_bad_input() -> None:
    A, B, C, D = random_parts()
    s = System(A, B, C, D)
    for dt in (0.0, -0.1, float("nan"), torch.tensor([0.1, 0.0])):
        with pytest.raises(ValueError, match="dt must be positive"):
            discretise(s, dt)
    with pytest.raises(ValueError, match="got 'ZOH'; did you mean 'zoh'"):
        discretise(s, 0.1, "ZOH")
    with pytest.raises(ValueError, match="got 'bilinar'; did you mean 'bilinear'"):
        discretise(s, 0.1, "bilinar")
    with pytest.raises(ValueError, match=r"already discrete with dt = 0\.1"):
        discretise(discretise(s, 0.1), 0.1)
    with pytest.raises(TypeError, match="expected a System, got Tensor"):
        discretise(A, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method must be one of"):
        diagonal_step(A[0], A[1], "tustin")


def test_steps_and_systems_without_a_discrete_form_are_refused() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    system = System(2 * one, one, one, 0)
    for dt in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="dt must be positive and finite"):
            discretise(system, dt)
    with pytest.raises(TypeError, match="dt must be a number or a tensor, got str"):
        discretise(system, "0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unstable eigenvalue 2 / dt"):
        discretise(system, 1.0, "bilinear")
