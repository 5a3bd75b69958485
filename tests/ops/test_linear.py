"""Values of linear_scan against a loop, scipy and closed forms: every backend, length, dtype, way to broadcast."""

from __future__ import annotations

import pytest
import torch
from linear_cases import every_backend, multiplier
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.scan import linear_scan, use

LENGTHS = (1, 2, 3, 63, 64, 65, 1000)


def loop(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """The recurrence in Python numbers (complex128), sharing nothing with the library."""
    a, h = a.expand(b.shape).to(torch.complex128), b.to(torch.complex128).clone()
    l = b.shape[-2]
    state = torch.zeros_like(h[..., 0, :]) if h0 is None else h0.to(torch.complex128)
    for t in range(l - 1, -1, -1) if reverse else range(l):
        state = a[..., t, :] * state + h[..., t, :]
        h[..., t, :] = state
    return h


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("l", LENGTHS)
def test_equals_the_loop(backend: str, l: int, dtype: torch.dtype) -> None:
    a, b, h0 = multiplier(2, l, 5, dtype=dtype), torch.randn(2, l, 5, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    with use(backend):
        for reverse in (False, True):
            for start in (None, h0):
                h = linear_scan(a, b, start, reverse)
                assert h.dtype == dtype
                assert h.shape == b.shape
                want = loop(a, b, start, reverse)
                assert_close(h, want if dtype.is_complex else want.real)


SHAPES = {
    "scalar": (),
    "n": (3,),
    "one": (1,),
    "l1": (37, 1),
    "ln": (37, 3),
    "1n": (1, 3),
    "inner rows": (4, 1, 3),
    "outer rows": (2, 1, 1, 1, 3),
    "middle rows": (5, 1, 1, 3),
    "outer and inner": (2, 1, 4, 1, 3),
    "outer and inner in time": (2, 1, 4, 37, 3),
    "inner in time": (4, 37, 3),
    "outer in time": (2, 1, 1, 37, 3),
    "all": (2, 5, 4, 37, 3),
}


@every_backend
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_broadcast_multiplier(backend: str, shape: tuple[int, ...]) -> None:
    a = multiplier(*shape).requires_grad_()
    b = torch.randn(2, 5, 4, 37, 3, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(5, 1, 3, dtype=torch.float64, requires_grad=True)
    g = torch.randn_like(b)
    with use(backend):
        h = linear_scan(a, b, h0)
        got = torch.autograd.grad(h, (a, b, h0), g)
    want = reference_scan(a, b, h0)
    assert_close(h, want)
    assert_close(got, torch.autograd.grad(want, (a, b, h0), g))


@every_backend
@pytest.mark.parametrize("l", [1, 2, 65, 1000])
def test_constant_coefficient_is_scipys_filter(backend: str, l: int) -> None:
    signal = pytest.importorskip("scipy.signal")
    b, h0 = torch.randn(l, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    a = torch.tensor([0.99, -0.7, 0.0, 1.0], dtype=torch.float64)
    with use(backend):
        h = linear_scan(a, b, h0)
    for j in range(4):
        zi = [float(a[j] * h0[j])]
        want, _ = signal.lfilter([1.0], [1.0, -float(a[j])], b[:, j].numpy(), zi=zi)
        assert_close(h[:, j], torch.from_numpy(want))


@every_backend
def test_one_is_a_running_sum(backend: str) -> None:
    b = torch.randn(3, 777, 2, dtype=torch.float64)
    with use(backend):
        assert_close(linear_scan(torch.ones(2, dtype=torch.float64), b), b.cumsum(-2))
        assert_close(linear_scan(torch.ones_like(b), b), b.cumsum(-2))


@every_backend
def test_geometric_series(backend: str) -> None:
    a, l = torch.tensor([0.9 * torch.exp(torch.tensor(0.4j))], dtype=torch.complex128), 500
    with use(backend):
        h = linear_scan(a, torch.ones(l, 1, dtype=torch.complex128))
    k = torch.arange(1, l + 1, dtype=torch.float64)[:, None]
    assert_close(h, (1 - a**k) / (1 - a))


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
def test_zeros_reset_and_underflow_is_harmless(backend: str, reverse: bool) -> None:
    """Products of a that vanish or underflow, where a method that divides by them gives NaN."""
    a = torch.full((1, 400, 3), 1e-30, dtype=torch.float64)
    a[:, ::7] = 0.0
    a[:, 1::7] = 1.0
    b = torch.randn(1, 400, 3, dtype=torch.float64)
    with use(backend):
        assert_close(linear_scan(a, b, reverse=reverse), loop(a, b, None, reverse).real)


@every_backend
def test_without_a_start_the_first_multiplier_is_never_used(backend: str) -> None:
    a, b = multiplier(2, 9, 3), torch.randn(2, 9, 3, dtype=torch.float64)
    a[:, 0] = float("inf")
    with use(backend):
        h = linear_scan(a, b)
    assert_close(h, loop(a.clamp(max=1.0), b).real)


@every_backend
@pytest.mark.parametrize(("dtype", "inner"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)])
def test_half_accumulates_in_float32(backend: str, dtype: torch.dtype, inner: torch.dtype) -> None:
    a, b = torch.full((1000, 2), 0.999).to(dtype), torch.full((1000, 2), 0.01).to(dtype)
    with use(backend):
        h = linear_scan(a, b)
        wide = linear_scan(a.to(inner), b.to(inner))
    assert h.dtype == dtype
    assert torch.equal(h, wide.to(dtype))  # rounded once, at the end


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_lower_precision(backend: str, dtype: torch.dtype) -> None:
    a, b = multiplier(2, 300, 4, dtype=dtype), torch.randn(2, 300, 4, dtype=dtype)
    with use(backend):
        h = linear_scan(a, b)
    assert_close(h.to(torch.complex128), loop(a, b), dtype={torch.complex64: torch.float32}.get(dtype, dtype))


MIXED = [
    (torch.float64, torch.complex128, torch.complex128),
    (torch.complex128, torch.float64, torch.complex128),
    (torch.float64, torch.float64, torch.complex128),
    (torch.float32, torch.float64, torch.float64),
    (torch.float64, torch.complex64, torch.float32),
]


@pytest.mark.parametrize(("of_a", "of_b", "of_h0"), MIXED)
@pytest.mark.parametrize("shape", [(3,), (2, 33, 3)])
def test_mixed_dtypes(of_a: torch.dtype, of_b: torch.dtype, of_h0: torch.dtype, shape: tuple[int, ...]) -> None:
    a = multiplier(*shape, dtype=of_a).requires_grad_()
    b = torch.randn(2, 33, 3, dtype=of_b, requires_grad=True)
    h0 = torch.randn(2, 3, dtype=of_h0, requires_grad=True)
    h = linear_scan(a, b, h0)
    assert h.dtype == torch.promote_types(torch.promote_types(of_a, of_b), of_h0)
    want = reference_scan(a.to(h.dtype), b.to(h.dtype), h0.to(h.dtype))
    assert_close(h, want)
    g = torch.randn_like(h)
    coarsest = torch.float32 if torch.float32 in (of_a, of_b, of_h0) or of_b == torch.complex64 else torch.float64
    for x in (a, b, h0):
        got, truth = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for y in (h, want))
        assert got.dtype == x.dtype
        assert_close(got, truth, dtype=coarsest, gradient=True)


@every_backend
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0), (0, 3), (0, 0)])
def test_empty(backend: str, shape: tuple[int, ...]) -> None:
    b = torch.randn(shape, requires_grad=True)
    a, h0 = torch.rand(shape[-1], requires_grad=True), torch.rand(shape[-1], requires_grad=True)
    with use(backend):
        h = linear_scan(a, b, h0)
        assert h.shape == shape
        grads = torch.autograd.grad(h.sum(), (a, b, h0))
    assert [g.shape for g in grads] == [a.shape, b.shape, h0.shape]
    assert not any(g.any() for g in grads)


@every_backend
def test_views_that_are_not_contiguous(backend: str) -> None:
    a = multiplier(6, 40, 2, dtype=torch.complex128).transpose(0, 2)[:, ::2].conj()  # (2, 20, 6)
    b = torch.randn(20, 6, dtype=torch.complex128).expand(2, 20, 6)
    h0 = torch.randn(12, dtype=torch.complex128)[::2]
    with use(backend):
        assert_close(linear_scan(a, b, h0), loop(a, b, h0.expand(2, 6)))
        real = torch.randn(2, 20, 6, dtype=torch.complex128).conj().imag  # a lazily negated view
        assert_close(linear_scan(real * 0.1, real), loop(real * 0.1, real).real)
        assert_close(linear_scan(real.clamp(-1, 1), real), loop(real.clamp(-1, 1), real).real)


@every_backend
def test_a_long_sequence_cut_anywhere_is_the_whole(backend: str) -> None:
    a, b = multiplier(2, 500, 3), torch.randn(2, 500, 3, dtype=torch.float64)
    with use(backend):
        whole, state, parts = linear_scan(a, b), None, []
        for lo, hi in ((0, 1), (1, 130), (130, 131), (131, 500)):
            parts.append(linear_scan(a[:, lo:hi], b[:, lo:hi], state))
            state = parts[-1][:, -1]
    assert_close(torch.cat(parts, 1), whole)


def test_long_and_nearly_undamped() -> None:
    """|a| = 1 - 1e-9 over 100,000 steps: errors that compound would show."""
    l = 100_000
    lam = torch.polar(torch.tensor([1 - 1e-9], dtype=torch.float64), torch.tensor([2.1], dtype=torch.float64))
    with use("torch"):
        chunked = linear_scan(lam, torch.ones(l, 1, dtype=torch.complex128))
    h = linear_scan(lam, torch.ones(l, 1, dtype=torch.complex128))
    want = (1 - lam**l) / (1 - lam)
    assert_close(h[-1], want)
    assert_close(chunked[-1], want)


@pytest.mark.parametrize("l", [1, 8, 37])
def test_equals_mambapys_parallel_scan(l: int) -> None:
    pscan = pytest.importorskip("mambapy.pscan", reason="mambapy is in the `parity` extra").pscan
    a, b = multiplier(2, l, 4, 3).requires_grad_(), torch.randn(2, l, 4, 3, dtype=torch.float64, requires_grad=True)
    want = pscan(a, b)  # (b, l, d, n)
    got = linear_scan(a.transpose(1, 2), b.transpose(1, 2)).transpose(1, 2)
    assert_close(got, want)
    g = torch.randn_like(got)
    assert_close(torch.autograd.grad(got, (a, b), g), torch.autograd.grad(want, (a, b), g))
