"""The Triton scans compiled on a GPU: chosen by default, right in values and gradients, the same bits every time."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan.kernels import BACKWARD, FORWARD
from resolvent.ops.selective_scan.kernels import BACKWARD_CANDIDATES, FORWARD_CANDIDATES
from resolvent.runtime import dispatch
from resolvent.scan import linear_scan, selective_scan, use

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which comes with a CUDA build of torch")
CUDA = torch.device("cuda")
LENGTHS = [1, 2, 31, 33, 1000, 4096, 65_536]


def names(op: str, candidates: tuple[dispatch.Candidate, ...], dtype: torch.dtype) -> str:
    return dispatch.available(op, candidates, CUDA, dtype)[0]


def test_triton_comes_first() -> None:
    for dtype in (torch.float32, torch.complex64):
        assert names("linear_scan", FORWARD, dtype) == "triton"
        assert names("linear_scan_backward", BACKWARD, dtype) == "triton"
    assert names("linear_scan", FORWARD, torch.bfloat16) == "triton"
    assert names("selective_scan", FORWARD_CANDIDATES, torch.float32) == "triton"
    assert names("selective_scan_backward", BACKWARD_CANDIDATES, torch.float32) == "triton"


# -- the linear scan ---------------------------------------------------------------------------------------------------


def scan_and_gradients(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (a, b, h0) if t is not None]
    h = linear_scan(*leaves, reverse=reverse)
    weight = torch.linspace(-1, 1, h.numel(), dtype=torch.float64).reshape(h.shape).to(h.device, h.dtype)
    return [h, *torch.autograd.grad(h, leaves, weight)]


def compare(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool = False, narrow: torch.dtype | None = None) -> None:
    """Float32 or half against torch operations in float64; a, b and h0 come in float64."""
    narrow = narrow or (torch.complex64 if b.is_complex() else torch.float32)
    moved = [None if t is None else t.to(CUDA, narrow) for t in (a, b, h0)]
    found = scan_and_gradients(*moved, reverse)
    with use("torch"):
        want = scan_and_gradients(*(None if t is None else t.to(b.dtype) for t in moved), reverse)
    real = narrow if narrow == torch.bfloat16 else torch.float32
    assert_close(found[0].to(b.dtype), want[0], dtype=real)
    for got, true in zip(found[1:], want[1:], strict=True):
        assert_close(got.to(true.dtype), true, dtype=real, gradient=True)


def draw(shape: tuple[int, ...], dtype: torch.dtype, constant: bool) -> tuple[Tensor, Tensor, Tensor]:
    a = 0.5 + 0.49 * torch.rand((1, 1, shape[-1]) if constant else shape, dtype=torch.float64)
    a = torch.polar(a, 6.3 * torch.rand_like(a)) if dtype.is_complex else a
    return a, torch.randn(shape, dtype=dtype), torch.randn(*shape[:-2], shape[-1], dtype=dtype)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_linear_lengths(dtype: torch.dtype, constant: bool, length: int) -> None:
    compare(*draw((1, length, 5), dtype, constant))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(3, 70, 33), (300, 70, 64), (2, 2, 129, 17)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_linear_shapes(dtype: torch.dtype, shape: tuple[int, ...], reverse: bool) -> None:
    for constant in (False, True):
        compare(*draw(shape, dtype, constant), reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 64, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_linear_with_time_last_in_memory(dtype: torch.dtype, length: int, reverse: bool) -> None:
    a, b, h0 = draw((2, length, 3), dtype, False)
    b = b.mT.contiguous().mT
    compare(a, b, h0, reverse)
    narrow = torch.complex64 if dtype.is_complex else torch.float32
    assert linear_scan(a.to(CUDA, narrow), b.to(CUDA, narrow)).mT.is_contiguous()


@pytest.mark.parametrize("length", [7, 1000])
def test_linear_in_half_precision(length: int) -> None:
    compare(*draw((2, length, 40), torch.float64, False), narrow=torch.bfloat16)


def test_linear_gives_the_same_bits() -> None:
    a, b, h0 = (t.to(CUDA, torch.complex64) for t in draw((2, 9001, 3), torch.complex128, True))
    first, second = scan_and_gradients(a, b, h0, False), scan_and_gradients(a, b, h0, False)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_linear_second_order_vmap_and_tangent() -> None:
    a, b, _ = (t.to(CUDA, torch.float32) for t in draw((2, 9, 3), torch.float64, False))

    def energy(a: Tensor, b: Tensor) -> Tensor:
        return linear_scan(a, b).square().sum()

    def slope(a: Tensor, b: Tensor) -> Tensor:
        return torch.func.grad(energy)(a, b)

    with use("torch"):
        twice = torch.func.grad(lambda a: slope(a, b).square().sum())(a)
        mapped = torch.func.vmap(linear_scan)(a, b)
        tangent = torch.func.jvp(linear_scan, (a, b), (b, a))[1]
    assert_close(torch.func.grad(lambda a: slope(a, b).square().sum())(a), twice, gradient=True)
    assert_close(torch.func.vmap(linear_scan)(a, b), mapped)
    assert_close(torch.func.jvp(linear_scan, (a, b), (b, a))[1], tangent)


def test_a_dtype_without_a_kernel_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    dispatch.forget()
    a, b, _ = (t.to(CUDA) for t in draw((1, 9, 3), torch.complex128, False))
    with caplog.at_level(logging.WARNING, "resolvent"):
        found = [linear_scan(a, b) for _ in range(2)]
    assert sum("triton" in message for message in caplog.messages) == 1
    assert_close(found[0].cpu(), linear_scan(a.cpu(), b.cpu()))


# -- the selective scan ------------------------------------------------------------------------------------------------


def inputs(b: int, l: int, d: int, n: int) -> dict[str, Tensor]:
    sizes = {"u": (b, l, d), "B": (b, l, n), "C": (b, l, n), "D": (d,), "z": (b, l, d), "h0": (b, d, n)}
    x = {name: torch.randn(size, dtype=torch.float64) for name, size in sizes.items()}
    return {**x, "dt": 0.3 * torch.rand(b, l, d, dtype=torch.float64), "A": -4 * torch.rand(d, n, dtype=torch.float64)}


def selective_and_gradients(x: dict[str, Tensor], reverse: bool) -> dict[str, Tensor]:
    leaves = {name: t.detach().requires_grad_() for name, t in x.items()}
    y, h = selective_scan(**leaves, reverse=reverse)
    weights = [torch.linspace(-1, 1, t.numel(), dtype=torch.float64).reshape(t.shape).to(t) for t in (y, h)]
    gradients = torch.autograd.grad((y, h), list(leaves.values()), weights)
    return {"y": y, "h": h, **dict(zip(leaves, gradients, strict=True))}


def compare_selective(x: dict[str, Tensor], reverse: bool = False, narrow: torch.dtype = torch.float32) -> None:
    wide = {"A", "D", "h0"}  # as models keep them
    kept = {name: t.to(CUDA, torch.float32 if name in wide else narrow) for name, t in x.items()}
    found = selective_and_gradients(kept, reverse)
    with use("torch"):
        want = selective_and_gradients({name: t.double() for name, t in kept.items()}, reverse)
    for name, true in want.items():
        assert_close(found[name].double(), true, dtype=narrow, gradient=name not in ("y", "h"))


@pytest.mark.parametrize("length", [1, 3, 32, 97, 1000, 16_384, 65_536])
def test_selective_lengths(length: int) -> None:
    compare_selective(inputs(1, length, 3, 2))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [(1, 16), (17, 1), (64, 16), (24, 8), (5, 3), (20, 64)])
def test_selective_sizes(size: tuple[int, int], reverse: bool) -> None:
    compare_selective(inputs(2, 160, *size), reverse)


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [2, 600])
def test_selective_batches(batch: int, narrow: torch.dtype) -> None:
    """Few sequences and many take different ways; whole tiles and B and C in pairs on both."""
    compare_selective(inputs(batch, 64, 128, 16), narrow=narrow)


@pytest.mark.parametrize("reverse", [False, True])
def test_selective_segments_of_many_chunks(reverse: bool) -> None:
    """Whole tiles all along, and states that are written over by those found ahead of them many times."""
    compare_selective(inputs(8, 4096, 512, 16), reverse, torch.bfloat16)


def test_selective_packed_lengths() -> None:
    """dt = 0 holds the state: a padded sequence ends where the short one does."""
    x = {name: t.to(CUDA, torch.float32) for name, t in inputs(2, 50, 6, 4).items()}
    x["dt"][0, 30:] = 0
    short = {name: t[:1, :30] if name in ("u", "dt", "B", "C", "z") else t[:1] for name, t in x.items()}
    short |= {"A": x["A"], "D": x["D"]}
    y, h = selective_scan(**x)
    y_short, h_short = selective_scan(**short)
    assert_close(y[:1, :30], y_short)
    assert_close(h[:1], h_short)


def test_selective_gives_the_same_bits() -> None:
    x = {name: t.to(CUDA, torch.float32) for name, t in inputs(2, 3000, 40, 16).items()}
    first, second = selective_and_gradients(x, False), selective_and_gradients(x, False)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_selective_under_compile() -> None:
    x = {name: t.to(CUDA, torch.float32).requires_grad_() for name, t in inputs(2, 64, 16, 16).items()}
    want = selective_and_gradients(x, False)
    y, _ = torch.compile(lambda **x: selective_scan(**x), fullgraph=True)(**x)
    assert_close(y, want["y"])
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y)
    whole = selective_scan(**x)[0]
    for got, true in zip(*(torch.autograd.grad(t, list(x.values()), weight) for t in (y, whole)), strict=True):
        assert_close(got, true, gradient=True)


def test_more_states_than_a_warp_holds() -> None:
    compare_selective(inputs(1, 40, 3, 65))
