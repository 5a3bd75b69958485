"""Kernels: every method against powers of the dense matrix, published values, scipy and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ssm import (
    DPLR,
    Dense,
    Diagonal,
    System,
    cauchy_kernel_continuous,
    conjugate_closed,
    dense_kernel,
    discretise,
    dplr,
    hippo,
    kernel,
    vandermonde_kernel,
)
from resolvent.ssm.kernel import METHODS, powers

F64, C128 = torch.float64, torch.complex128


def legs(n: int, dt: float, method: str = "bilinear", name: str = "legs") -> System:
    A, B = hippo(name, n)
    C = torch.full((1, n), 1 / math.sqrt(n), dtype=F64)
    return discretise(System(A, B[:, None], C, torch.zeros(1, 1, dtype=F64)), dt, method)


def legs_dplr(n: int, dt: float, name: str = "legs", dtype: torch.dtype = C128) -> System:
    lam, P, b, V = dplr(name, n, halves=False)
    C = torch.full((1, n), 1 / math.sqrt(n), dtype=C128) @ V
    P, D = P.to(dtype), torch.zeros(1, 1, dtype=dtype)
    return discretise(System(DPLR(lam.to(dtype), P, P), b[:, None].to(dtype), C.to(dtype), D), dt, "bilinear")


def random_system(form: str, *bank: int, n: int = 6, m: int = 2, p: int = 3) -> System:
    lam = 0.95 * torch.exp(1j * 3 * torch.rand(*bank, n, dtype=F64))
    P, Q = (0.2 * torch.randn(*bank, n, 2, dtype=C128) for _ in range(2))
    A = {"diagonal": Diagonal(lam), "dplr": DPLR(lam, P, Q), "dense": Dense(torch.diag_embed(lam) - P @ Q.mH)}[form]
    B, C = torch.randn(*bank, n, m, dtype=C128), torch.randn(*bank, p, n, dtype=C128)
    return System(A, B, C, torch.randn(*bank, p, m, dtype=F64), 1.0)


NATIVE = {"diagonal": "vandermonde", "dplr": "cauchy", "dense": "krylov"}


@pytest.mark.parametrize("method", ["dense", "krylov", "cauchy", "continuous"])
@pytest.mark.parametrize(
    ("n", "dt", "length", "known"),
    [
        (4, 0.1, 64, {0: 0.27352609886928403, 1: 0.1117196837636577, 2: 0.0319969645506761, 63: -9.6125931264e-05}),
        (
            64,
            0.01,
            1024,
            {0: 0.05764826357493025, 1: -0.028789280241760355, 2: 0.03600691238492605, 1023: -2.05495878e-07},
        ),
    ],
)
def test_published_bilinear_values(method: str, n: int, dt: float, length: int, known: dict[int, float]) -> None:
    if method == "continuous":
        lam, P, b, V = dplr("legs", n, halves=False)
        K = cauchy_kernel_continuous(lam, P, b, (V / math.sqrt(n)).sum(0), dt, length)
    else:
        K = kernel(legs_dplr(n, dt) if method == "cauchy" else legs(n, dt), length, method)[0, 0]
    for position, value in known.items():
        assert float(K.real[position]) == pytest.approx(value, abs=1e-12)
    if n == 64:
        assert float(K.real.sum()) == pytest.approx(0.12502222142772723, abs=1e-12)


def test_published_zero_order_hold_values() -> None:
    K = kernel(legs(64, 0.01, "zoh"), 2)[0, 0]
    assert K.tolist() == pytest.approx([0.035823778795436, 0.009226733853454495], abs=1e-12)


@pytest.mark.parametrize("name", ["legs", "legt", "lagt", "fout"])
@pytest.mark.parametrize(
    ("n", "length", "dt"), [(4, 1, 0.1), (16, 2, 0.1), (16, 255, 0.02), (64, 1023, 0.01), (64, 1024, 0.001)]
)
def test_cauchy_is_the_dense_kernel(name: str, n: int, length: int, dt: float) -> None:
    want = dense_kernel(legs(n, dt, name=name), length)
    assert float((kernel(legs_dplr(n, dt, name), length) - want).abs().max()) < 1e-12
    single = kernel(legs_dplr(n, dt, name, torch.complex64), length)
    assert single.dtype == torch.complex64
    assert float((single - want).abs().max()) < 1e-5 * float(want.abs().max()) + 1e-6


@pytest.mark.parametrize("name", ["legs", "legt", "lagt"])
@pytest.mark.parametrize(("length", "dt"), [(1, 0.1), (64, 0.1), (63, 0.1), (1024, 0.01), (1023, 0.01)])
def test_classical_cauchy_form_with_its_removable_node(name: str, length: int, dt: float) -> None:
    """Even lengths hold the node om = -1, where the textbook formula divides by zero."""
    lam, P, b, V = dplr(name, 64, halves=False)
    c = V.sum(0) / 8
    want = dense_kernel(legs(64, dt, name=name), length)[0, 0]
    assert float((cauchy_kernel_continuous(lam, P, b, c, dt, length) - want).abs().max()) < 1e-12
    lam, P, b, c = (t.to(torch.complex64) for t in (lam, P, b, c))
    assert float((cauchy_kernel_continuous(lam, P, b, c, dt, length) - want).abs().max()) < 1e-6


def test_classical_cauchy_form_takes_a_bank_of_steps() -> None:
    lam, P, b, V = dplr("legt", 8, halves=False)
    dt = torch.tensor([0.1, 0.02], dtype=F64)
    C = torch.randn(2, 8, dtype=F64).to(C128) @ V
    K = cauchy_kernel_continuous(lam, P, b, C, dt, 30)
    for i in range(2):
        assert_close(K[i], cauchy_kernel_continuous(lam, P, b, C[i], float(dt[i]), 30))


@pytest.mark.parametrize("form", ["diagonal", "dplr", "dense"])
@pytest.mark.parametrize("bank", [(), (3,), (2, 3)])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 50])
def test_native_method_is_the_dense_kernel(form: str, bank: tuple[int, ...], length: int) -> None:
    s = random_system(form, *bank)
    K = kernel(s, length)
    assert K.shape == (*bank, 3, 2, length)
    if length:
        assert torch.equal(K, kernel(s, length, NATIVE[form]))
        assert_close(K, dense_kernel(s, length))
        assert_close(K, kernel(s, length, "krylov"))


@pytest.mark.parametrize("form", ["diagonal", "dplr", "dense"])
def test_gradients_are_those_of_the_dense_kernel(form: str) -> None:
    lam = 0.95 * torch.exp(1j * 3 * torch.rand(2, 5, dtype=F64))
    P, Q, B, C = (0.3 * torch.randn(2, *s, dtype=C128) for s in ((5, 1), (5, 1), (5, 2), (3, 5)))
    inputs = [t.requires_grad_() for t in (lam, P, Q, B, C)]
    upstream = torch.randn(2, 3, 2, 41, dtype=C128)

    def gradients(compute: Callable[[System, int], Tensor]) -> list[Tensor]:
        full = torch.diag_embed(lam) - P @ Q.mH
        A = {"diagonal": Diagonal(lam), "dplr": DPLR(lam, P, Q), "dense": Dense(full)}[form]
        K = compute(System(A, B, C, torch.zeros(3, 2), 1.0), 41)
        found = torch.autograd.grad((upstream.conj() * K).real.sum(), inputs, allow_unused=True)
        return [g for g in found if g is not None]

    assert_close(gradients(kernel), gradients(dense_kernel), gradient=True)


@pytest.mark.parametrize("method", ["vandermonde", "cauchy", "continuous"])
def test_gradcheck(method: str) -> None:
    lam = -0.5 + 1j * torch.tensor([1.0, -1.0, 5.0], dtype=F64)
    P, B, C = (torch.randn(*s, dtype=C128) for s in ((3, 1), (3, 1), (1, 3)))
    dt = torch.tensor(0.2, dtype=F64)

    def run(lam: Tensor, P: Tensor, B: Tensor, C: Tensor, dt: Tensor) -> Tensor:
        if method == "continuous":
            return cauchy_kernel_continuous(lam, P, B[:, 0], C[0], dt, 6)
        A = Diagonal(lam) if method == "vandermonde" else DPLR(lam, P, P)
        return kernel(discretise(System(A, B, C, torch.zeros(1, 1)), dt, "bilinear"), 6)

    inputs = tuple(t.requires_grad_() for t in (lam, P, B, C, dt))
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("length", [0, 1, 30])
def test_delayed_kernel_and_scipy_impulse(length: int) -> None:
    """With the direct term in front, the kernel of the control form is scipy's impulse response."""
    s = legs(4, 0.1).delayed()
    K = kernel(s, length)
    assert K.shape == (1, 1, length)
    if length == 0:
        return
    parts = tuple(t.numpy() for t in (s.A.dense(), s.B, s.C, s.D))
    _, (impulse,) = scipy.signal.dimpulse((*parts, 1.0), n=length + 1)  # scipy answers NaN for n=1
    total = K[0, 0].clone()
    total[0] += s.D[0, 0]
    assert_close(total, torch.from_numpy(impulse[:length, 0]))


def test_kernel_convolves_to_the_simulation() -> None:
    s, u = random_system("dplr"), torch.randn(20, 2, dtype=F64)
    K = kernel(s, 20)
    y = torch.stack([sum(K[..., j] @ u[t - j].to(C128) for j in range(t + 1)) + s.D @ u[t].to(C128) for t in range(20)])
    assert_close(y, s.simulate(u)[0])


def test_matches_python_control() -> None:
    control = pytest.importorskip("control", reason="python-control is in the parity extra")
    s = legs(8, 0.05)
    d = s.delayed()
    outside = control.ss(*(t.numpy() for t in (d.A.dense(), d.B, d.C, d.D)), 1.0)
    want = control.impulse_response(outside, T=np.arange(25)).outputs
    assert_close(kernel(s, 25)[0, 0], torch.from_numpy(np.asarray(want)))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 1000])
def test_vandermonde_against_the_sum_as_written(length: int) -> None:
    lam = 0.99 * torch.exp(1j * torch.randn(3, 8, dtype=F64))
    lam[0, 0] = 0
    weight = torch.randn(3, 8, dtype=C128)
    table = torch.from_numpy(lam[..., None].numpy() ** np.arange(length))
    want = (weight[..., None] * table).sum(-2)
    assert_close(vandermonde_kernel(lam, weight, length), want)
    assert_close(vandermonde_kernel(lam, weight, length, halves=True), 2 * want.real)


def test_vandermonde_halves_are_the_closed_system() -> None:
    lam, _, b, V = dplr("legs", 32)
    c = torch.randn(1, 32, dtype=F64).to(C128) @ V
    s = discretise(conjugate_closed(lam, b[:, None], c, torch.zeros(1, 1, dtype=F64)), 0.01)
    assert isinstance(s.A, Diagonal)
    got = vandermonde_kernel(s.A.lam[:16], s.C[0, :16] * s.B[:16, 0], 300, halves=True)
    assert_close(got.to(C128), kernel(s, 300)[0, 0])
    assert_close(got.to(C128), dense_kernel(s.dense(), 300)[0, 0])


def test_vandermonde_single_precision_stays_accurate_over_long_kernels() -> None:
    lam = torch.exp(-1e-3 + 1j * torch.linspace(0, 3, 16, dtype=F64))
    weight = torch.randn(16, dtype=C128)
    lam32 = lam.to(torch.complex64)
    want = vandermonde_kernel(lam32.to(C128), weight, 4000)
    got = vandermonde_kernel(lam32, weight.to(torch.complex64), 4000)
    assert_close(got.to(C128), want, dtype=torch.float32)


def test_powers_of_zero_and_their_gradient() -> None:
    lam = torch.tensor([0.0, 0.5], dtype=F64, requires_grad=True)
    table, following = powers(lam, 5)
    assert_close(table, torch.tensor([[1.0, 0, 0, 0, 0], [1, 0.5, 0.25, 0.125, 0.0625]], dtype=F64))
    assert_close(following, lam**5)
    (g,) = torch.autograd.grad(table.sum(), lam)
    assert_close(g, torch.tensor([1.0, 1 + 1 + 0.75 + 0.5], dtype=F64))


def test_kernels_of_different_lengths_are_prefixes() -> None:
    for s in (legs(16, 0.05), legs_dplr(16, 0.05), random_system("diagonal")):
        assert_close(kernel(s, 100)[..., :37], kernel(s, 37))


def test_compile_vmap_jvp() -> None:
    lam, P, b, _ = dplr("legs", 8, halves=False)
    D = torch.zeros(1, 1, dtype=C128)

    def run(C: Tensor) -> Tensor:
        return kernel(discretise(System(DPLR(lam, P, P), b[:, None], C, D), 0.05, "bilinear"), 14)

    C = torch.randn(3, 1, 8, dtype=C128)
    want = torch.stack([run(c) for c in C])
    assert_close(torch.func.vmap(run)(C), want)
    assert_close(torch.compile(run, backend="aot_eager", fullgraph=True)(C), want)
    _, tangent = torch.func.jvp(run, (C,), (C,))
    assert_close(tangent, want)  # K is linear in C


def test_bad_input() -> None:
    A, B = hippo("legs", 4)
    continuous = System(A, B[:, None], B[None], torch.zeros(1, 1, dtype=F64))
    s = discretise(continuous, 0.1)
    with pytest.raises(ValueError, match="is continuous; call discretise"):
        kernel(continuous, 4)
    with pytest.raises(ValueError, match="length must be at least 0, got -1"):
        kernel(s, -1)
    with pytest.raises(TypeError, match=r"whole number, got 4\.0"):
        kernel(s, 4.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'cauchy'"):
        kernel(s, 4, "Cauchy")
    with pytest.raises(ValueError, match="needs a DPLR A, got Dense; call kernel"):
        kernel(s, 4, "cauchy")
    with pytest.raises(ValueError, match="needs a Diagonal A, got Dense; call kernel"):
        kernel(s, 4, "vandermonde")
    with pytest.raises(TypeError, match="expected a System"):
        kernel(A, 4)  # type: ignore[arg-type]
    varying = System(A[None], B[None, :, None], B[None, None], torch.zeros(1, 1, 1), 1.0, time_varying=True)
    with pytest.raises(ValueError, match="no single kernel"):
        kernel(varying, 1)
    assert set(METHODS) == {"dense", "krylov", "vandermonde", "cauchy"}
