"""Causal convolution: three methods, one answer, against numpy and scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_close
from resolvent.ops.filter import convolution as module
from resolvent.ops.filter.convolution import METHODS, crossover, fast_length, rows_per_kernel
from resolvent.ssm import causal_conv, direct_conv, fft_conv, toeplitz_conv

F64 = torch.float64
Conv = Callable[[Tensor, Tensor], Tensor]
FAST = [fft_conv, toeplitz_conv]
ALL = [direct_conv, *FAST]


def outside(u: Tensor, k: Tensor) -> Tensor:
    """numpy's convolution, one sequence after the other, cut to the input's length."""
    lead = torch.broadcast_shapes(u.shape[:-1], k.shape[:-1])
    rows = u.expand(*lead, -1).reshape(-1, u.shape[-1]).numpy()
    taps = k.expand(*lead, -1).reshape(-1, k.shape[-1]).numpy()
    y = [np.convolve(a, b)[: u.shape[-1]] for a, b in zip(rows, taps, strict=True)]
    return torch.from_numpy(np.stack(y)).reshape(*lead, -1)


@pytest.mark.parametrize("conv", ALL)
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
@pytest.mark.parametrize(
    ("u_shape", "k_shape"),
    [
        ((1,), (1,)),
        ((7,), (7,)),
        ((1,), (5,)),
        ((65,), (64,)),
        ((2, 3, 100), (3, 100)),
        ((2, 3, 129), (3, 33)),
        ((2, 3, 64), (3, 200)),
        ((2, 1, 63), (4, 63)),
        ((5,), (3, 1, 9)),
        ((2, 3, 130), (2, 3, 130)),
        ((2, 3, 70), (2, 1, 70)),
        ((2, 3, 4, 20), (3, 1, 20)),
        ((300,), (2,)),
    ],
)
def test_methods_match_numpy(
    conv: Conv, dtype: torch.dtype, u_shape: tuple[int, ...], k_shape: tuple[int, ...]
) -> None:
    u, k = torch.randn(u_shape, dtype=dtype), torch.randn(k_shape, dtype=dtype)
    y = conv(u, k)
    assert y.dtype == dtype
    assert_close(y, outside(u, k))


@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 70), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_any_length_taps_block_and_batch(length: int, taps: int, block: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(length * 1000 + taps)
    u = torch.randn(batch, 2, length, dtype=F64, generator=generator)
    k = torch.randn(2, taps, dtype=F64, generator=generator)
    want = outside(u, k)
    assert_close(toeplitz_conv(u, k, block), want)
    assert_close(fft_conv(u, k), want)


@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize(
    ("u_shape", "k_shape", "y_shape"),
    [
        ((2, 0), (2, 5), (2, 0)),
        ((2, 5), (2, 0), (2, 5)),
        ((0, 3, 5), (3, 6), (0, 3, 5)),
        ((3, 1, 4), (0, 4), (3, 0, 4)),
    ],
)
def test_empty(
    method: str | None, u_shape: tuple[int, ...], k_shape: tuple[int, ...], y_shape: tuple[int, ...]
) -> None:
    u = torch.randn(u_shape, requires_grad=True)
    y = causal_conv(u, torch.randn(k_shape), method)
    assert torch.equal(y, torch.zeros(y_shape))


def test_an_impulse_returns_the_kernel_and_nothing_comes_early() -> None:
    k = torch.randn(50, dtype=F64)
    for conv in ALL:
        impulse = torch.zeros(50, dtype=F64)
        impulse[10] = 1.0
        y = conv(impulse, k)
        assert_close(y[10:], k[:40])
        assert float(y[:10].abs().max()) < 1e-14


def test_a_geometric_kernel_is_a_recursive_filter() -> None:
    u = torch.randn(500, dtype=F64)
    k = 0.9 ** torch.arange(500, dtype=F64)
    want = torch.from_numpy(scipy.signal.lfilter([1.0], [1.0, -0.9], u.numpy()))
    for conv in ALL:
        assert_close(conv(u, k), want)


@pytest.mark.parametrize("conv", FAST)
@pytest.mark.parametrize(("u_shape", "k_shape"), [((3, 2, 70), (2, 70)), ((4, 1, 33), (2, 50)), ((90,), (3, 20))])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_gradients_are_those_of_the_sum(
    conv: Conv, u_shape: tuple[int, ...], k_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    u, k = torch.randn(u_shape, dtype=F64), torch.randn(k_shape, dtype=F64)
    lead = torch.broadcast_shapes(u_shape[:-1], k_shape[:-1])
    upstream = torch.randn(*lead, u_shape[-1], dtype=F64)

    def gradients(conv: Conv, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = tuple(t.to(dtype).requires_grad_() for t in (u, k))
        return torch.autograd.grad(conv(*inputs), inputs, upstream.to(dtype))

    assert_close(gradients(conv, dtype), gradients(direct_conv, F64), dtype=dtype, gradient=True)


@pytest.mark.parametrize("conv", ALL)
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_gradcheck(conv: Conv, dtype: torch.dtype) -> None:
    u = torch.randn(2, 1, 5, dtype=dtype, requires_grad=True)
    k = torch.randn(2, 4, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(conv, (u, k))
    assert torch.autograd.gradgradcheck(conv, (u, k), fast_mode=True)


@pytest.mark.parametrize("conv", ALL)
def test_function_transforms(conv: Conv) -> None:
    u, k = torch.randn(3, 2, 20, dtype=F64), torch.randn(2, 20, dtype=F64)
    want = direct_conv(u, k)
    assert_close(torch.func.vmap(conv, (0, None))(u, k), want)
    assert_close(torch.func.vmap(conv, (1, 0), 1)(u, k), want)
    _, tangent = torch.func.jvp(lambda x: conv(x, k), (u,), (u,))
    assert_close(tangent, want)


@pytest.mark.parametrize("shape", [(40, 2, 33), (2, 2, 33)])
def test_compile(shape: tuple[int, ...]) -> None:
    """Both sides of the crossover, in one graph, with gradients."""
    u, k = torch.randn(shape, dtype=F64, requires_grad=True), torch.randn(2, 33, dtype=F64, requires_grad=True)
    compiled = torch.compile(causal_conv, backend="aot_eager", fullgraph=True)
    got, want = compiled(u, k), direct_conv(u, k)
    assert_close(got, want)
    assert_close(
        torch.autograd.grad(got.square().sum(), (u, k)), torch.autograd.grad(want.square().sum(), (u, k)), gradient=True
    )


@pytest.mark.parametrize("conv", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_sums_in_float32(conv: Conv, dtype: torch.dtype) -> None:
    u, k = torch.randn(4, 500).to(dtype), torch.randn(500).to(dtype) / 20
    want = direct_conv(u.double(), k.double())
    got = conv(u, k)
    assert got.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5  # one rounding at the end, not 500
    assert_close(got, want, tolerance=tolerance)


@pytest.mark.parametrize("conv", ALL)
def test_mixed_dtypes_promote(conv: Conv) -> None:
    u, k = torch.randn(30), torch.randn(30, dtype=torch.complex128)
    assert conv(u, k).dtype == torch.complex128
    assert_close(conv(u, k), outside(u.to(torch.complex128), k))


def test_the_cheapest_method_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in METHODS:
        monkeypatch.setattr(module, f"{name}_conv", lambda u, k, name=name: called.append(name))
    long, short = torch.zeros(64, 2, crossover(64) + 1), torch.zeros(64, 2, crossover(64))
    module.causal_conv(long, torch.zeros(2, 50))
    module.causal_conv(short, torch.zeros(2, 50))
    module.causal_conv(short[:1], torch.zeros(2, 50))
    module.causal_conv(long, torch.zeros(2, 3))
    assert called == ["fft", "toeplitz", "fft", "direct"]


@pytest.mark.parametrize("most", [1, 1 << 30])
@pytest.mark.parametrize("shape", [(3, 2, 37), (1, 1, 1), (4, 1, 130), (2, 0, 9)])
def test_the_correlation_is_the_gradient_of_the_kernel(
    shape: tuple[int, int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSFORMS", most)
    k = torch.randn(shape[0], shape[2], dtype=F64, requires_grad=True)
    u, g = (torch.randn(shape, dtype=F64) for _ in range(2))
    assert_close(module.fft_correlation(u, g), torch.autograd.grad(direct_conv(u, k[:, None]), k, g)[0])
    found = module.fft_correlation(u.bfloat16(), g.bfloat16())
    assert found.dtype == torch.float32
    assert_close(found, module.fft_correlation(u.bfloat16().double(), g.bfloat16().double()), dtype=torch.float32)


def test_rows_per_kernel() -> None:
    assert rows_per_kernel(torch.zeros(6, 4, 9), torch.zeros(4, 9)) == 6
    assert rows_per_kernel(torch.zeros(6, 4, 9), torch.zeros(9)) == 24
    assert rows_per_kernel(torch.zeros(9), torch.zeros(5, 9)) == 1
    assert rows_per_kernel(torch.zeros(0, 4, 9), torch.zeros(4, 9)) == 0


def test_fast_length_is_the_next_regular_number() -> None:
    for n in [*range(1, 2000), 65_537, 99_999, 131_071]:
        assert fast_length(n) == scipy.fft.next_fast_len(n, real=True)


def test_bad_input() -> None:
    u = torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"u \(2, 5\) and k \(3, 5\) do not broadcast"):
        causal_conv(u, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="k needs a time axis"):
        causal_conv(u, torch.tensor(1.0))
    with pytest.raises(TypeError, match="u must be a tensor, got list"):
        causal_conv([1.0], torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"k must be floating or complex, got torch\.int64"):
        causal_conv(u, torch.arange(3))
    with pytest.raises(ValueError, match="got 'FFT'; did you mean 'fft'"):
        causal_conv(u, u, "FFT")
