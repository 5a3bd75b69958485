"""Packed documents in the Triton scans, compiled: values and gradients are those of each document alone in float64."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.blocks import Hawk, Mamba
from resolvent.layers import LRU, RGLRU, S5, S6
from resolvent.scan import linear_scan, packed_starts, selective_scan, use

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which comes with a CUDA build of torch")
CUDA = torch.device("cuda")
three = pytest.mark.parametrize(
    "narrow", [torch.float32, torch.complex64, torch.bfloat16], ids=["float32", "complex64", "bfloat16"]
)


def lengths_of(l: int) -> list[int]:
    """Documents of one step, of a few, across the borders of tiles and chunks, and a long one at the end."""
    sizes, rest = [], l
    for size in (1, 5, 1, 30, 64, 600, l // 3):
        if 0 < size < rest:
            sizes.append(size)
            rest -= size
    return [*sizes, rest]


def slices(start: Tensor, reverse: bool) -> list[slice]:
    edges = [0, *(start.nonzero().flatten().tolist()), len(start)]
    found = [slice(s, e) for s, e in pairwise(edges) if e > s]
    return found[::-1] if reverse else found


# -- the linear scan ---------------------------------------------------------------------------------------------------


def linear_alone(a: Tensor, b: Tensor, h0: Tensor, start: Tensor, reverse: bool) -> Tensor:
    """Each document of b (r, l, n) through the scan without marks, for start (l,) with step 0 unmarked."""
    parts = slices(start, reverse)
    a = a.expand(b.shape)
    out = [linear_scan(a[:, p], b[:, p], h0 if p is parts[0] else None, reverse) for p in parts]
    return torch.cat(out[::-1] if reverse else out, 1)


def check_linear(
    shape: tuple[int, int, int],
    narrow: torch.dtype,
    reverse: bool = False,
    constant: bool = False,
    time_last: bool = False,
) -> None:
    wide = torch.complex128 if narrow.is_complex else torch.float64
    a = 0.5 + 0.49 * torch.rand((1, 1, shape[2]) if constant else shape, dtype=torch.float64)
    a = torch.polar(a, 6.3 * torch.rand_like(a)) if narrow.is_complex else a
    b, g = torch.randn(2, *shape, dtype=wide)
    given = [t.to(CUDA, narrow) for t in (a, b, torch.randn(shape[0], shape[2], dtype=wide))]
    truth = [t.to(wide).requires_grad_() for t in given]
    start = packed_starts(lengths_of(shape[1]), continued=True)
    with use("torch"):
        want = linear_alone(*truth, start, reverse)
        true = torch.autograd.grad(want, truth, g.to(CUDA, narrow).to(wide), materialize_grads=True)
    given[1] = given[1].mT.contiguous().mT if time_last else given[1]
    leaves = [t.requires_grad_() for t in given]
    h = linear_scan(*leaves, reverse, start.to(CUDA))
    real = torch.float32 if narrow.is_complex else narrow
    assert h.dtype == narrow
    assert_close(h.to(wide), want, dtype=real)
    for got, wanted in zip(torch.autograd.grad(h, leaves, g.to(CUDA, narrow)), true, strict=True):
        assert_close(got.to(wide), wanted, dtype=real, gradient=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 33, 1000, 65_537])
@three
def test_linear(narrow: torch.dtype, length: int, reverse: bool) -> None:
    """Few channels: the long ones are cut into chunks of time."""
    check_linear((2, length, 6), narrow, reverse)


@three
@pytest.mark.parametrize("length", [100, 65_537])
def test_linear_constant(length: int, narrow: torch.dtype) -> None:
    check_linear((2, length, 5), narrow, constant=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("narrow", [torch.float32, torch.complex64], ids=["float32", "complex64"])
def test_linear_in_one_pass(narrow: torch.dtype, reverse: bool) -> None:
    """Rows enough to fill the device, in both orders of memory."""
    check_linear((300, 70, 33), narrow, reverse)
    check_linear((3, 3000, 40), narrow, reverse, time_last=True)


def test_linear_rows_with_their_own_marks() -> None:
    a, b = torch.rand(3, 2, 50, 7, device=CUDA), torch.randn(3, 2, 50, 7, device=CUDA)
    start = torch.rand(3, 1, 50, device=CUDA) < 0.2
    for reverse in (False, True):
        found = linear_scan(a, b, None, reverse, start)
        truth = linear_scan(a.cpu().double(), b.cpu().double(), None, reverse, start.cpu())
        assert_close(found.cpu().double(), truth, dtype=torch.float32)


def test_linear_gradient_at_a_mark_is_exactly_none() -> None:
    a, b = torch.rand(1, 40, 6, device=CUDA, requires_grad=True), 1e30 * torch.randn(1, 40, 6, device=CUDA)
    start = packed_starts([3, 20, 17]).to(CUDA)
    (ga,) = torch.autograd.grad(linear_scan(a, b, start=start).sum(), a)
    assert torch.all(ga[:, [0, 3, 23]] == 0)
    assert torch.all(ga[:, 5:20] != 0)


def test_linear_further_derivatives_and_transforms() -> None:
    a, b = torch.rand(2, 9, 3, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    start = packed_starts([4, 5])

    def results(a: Tensor, b: Tensor, start: Tensor) -> list[Tensor]:
        def scan(a: Tensor, b: Tensor) -> Tensor:
            return linear_scan(a, b, start=start)

        def slope(a: Tensor) -> Tensor:
            return torch.func.grad(lambda a: scan(a, b).square().sum())(a)

        leaf = a.clone().requires_grad_()
        (first,) = torch.autograd.grad(scan(leaf, b).square().sum(), leaf, create_graph=True)
        return [
            torch.autograd.grad(first.square().sum(), leaf)[0],
            torch.func.grad(lambda a: slope(a).square().sum())(a),
            torch.func.vmap(scan)(a, b),
            torch.func.jvp(scan, (a, b), (b, a))[1],
        ]

    moved = [t.to(CUDA, torch.float32) for t in (a, b)]
    for got, want in zip(results(*moved, start.to(CUDA)), results(a, b, start), strict=True):
        assert_close(got.cpu().double(), want, dtype=torch.float32, gradient=True)


# -- the selective scan ------------------------------------------------------------------------------------------------

ALONG = ("u", "dt", "B", "C", "z")  # what runs with time


def inputs(b: int, l: int, d: int, n: int) -> dict[str, Tensor]:
    sizes = {"u": (b, l, d), "B": (b, l, n), "C": (b, l, n), "D": (d,), "z": (b, l, d), "h0": (b, d, n)}
    x = {name: torch.randn(size, dtype=torch.float64) for name, size in sizes.items()}
    return {**x, "dt": 0.3 * torch.rand(b, l, d, dtype=torch.float64), "A": -4 * torch.rand(d, n, dtype=torch.float64)}


def selective_alone(x: dict[str, Tensor], start: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    parts, out = slices(start, reverse), []
    for p in parts:
        own = {name: t[:, p] if name in ALONG else t for name, t in x.items()}
        own["h0"] = x["h0"] if p is parts[0] else torch.zeros_like(x["h0"])
        out.append(selective_scan(**own, reverse=reverse))
    return torch.cat([y for y, _ in (out[::-1] if reverse else out)], 1), out[-1][1]


def check_selective(
    size: tuple[int, int, int, int], reverse: bool = False, narrow: torch.dtype = torch.float32
) -> None:
    kept = {
        name: t.to(CUDA, torch.float32 if name in ("A", "D", "h0") else narrow) for name, t in inputs(*size).items()
    }
    start = packed_starts(lengths_of(size[1]), continued=True)
    truth = {name: t.double().requires_grad_() for name, t in kept.items()}
    with use("torch"):
        want = selective_alone(truth, start, reverse)
        g = [torch.randn_like(want[0]).to(narrow), torch.randn_like(want[1]).float()]
        true = torch.autograd.grad(want, list(truth.values()), [t.double() for t in g], materialize_grads=True)
    leaves = {name: t.requires_grad_() for name, t in kept.items()}
    found = selective_scan(**leaves, reverse=reverse, start=start.to(CUDA))
    assert_close([t.double() for t in found], list(want), dtype=narrow)
    for got, wanted in zip(torch.autograd.grad(found, list(leaves.values()), g), true, strict=True):
        assert_close(got.double(), wanted, dtype=narrow, gradient=True)


@pytest.mark.parametrize("length", [1, 33, 1000, 65_537])
def test_selective(length: int) -> None:
    check_selective((1, length, 3, 2), reverse=length == 1000)


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [2, 600])
def test_selective_batches(batch: int, narrow: torch.dtype) -> None:
    """Few sequences and many take different ways; whole tiles and B and C in pairs on both."""
    check_selective((batch, 64, 128, 16), narrow=narrow)


@pytest.mark.parametrize("reverse", [False, True])
def test_selective_segments_of_many_chunks(reverse: bool) -> None:
    check_selective((8, 4096, 512, 16), reverse, torch.bfloat16)


def test_selective_without_gradients() -> None:
    """Nothing saved: tiles of eight steps."""
    x = {name: t.to(CUDA, torch.float32) for name, t in inputs(300, 100, 128, 16).items()}
    start = packed_starts(lengths_of(100), continued=True)
    wide = {name: t.double() for name, t in x.items()}
    with use("torch"):
        want = selective_alone(wide, start, False)
    assert_close([t.double() for t in selective_scan(**x, start=start.to(CUDA))], list(want), dtype=torch.float32)


def test_selective_rows_with_their_own_marks() -> None:
    x = inputs(3, 90, 5, 4)
    start = torch.rand(3, 90) < 0.1
    y, h = selective_scan(**{name: t.to(CUDA, torch.float32) for name, t in x.items()}, start=start.to(CUDA))
    want = selective_scan(**x, start=start)
    assert_close([y.cpu().double(), h.cpu().double()], list(want), dtype=torch.float32)


# -- both --------------------------------------------------------------------------------------------------------------


def test_the_same_bits_every_time() -> None:
    x = {name: t.to(CUDA, torch.float32).requires_grad_() for name, t in inputs(2, 3000, 40, 16).items()}
    start = packed_starts(lengths_of(3000)).to(CUDA)
    runs = []
    for _ in range(2):
        y, h = selective_scan(**x, start=start)
        states = linear_scan(x["dt"], x["u"], start=start)
        runs.append([y, h, states, *torch.autograd.grad(y.sum() + h.sum() + states.sum(), list(x.values()))])
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_compiled() -> None:
    x = {name: t.to(CUDA, torch.float32).requires_grad_() for name, t in inputs(2, 64, 16, 16).items()}
    start = packed_starts(lengths_of(64)).to(CUDA)

    def both(**x: Tensor) -> Tensor:
        y, h = selective_scan(**x, start=start)
        return linear_scan(x["dt"], y, start=start, reverse=True) + h.sum()

    quick = torch.compile(both, fullgraph=True, backend="aot_eager")(**x)
    plain = both(**x)
    assert_close(quick, plain)
    for got, want in zip(
        *(torch.autograd.grad(t.square().sum(), list(x.values())) for t in (quick, plain)), strict=True
    ):
        assert_close(got, want, gradient=True)


@pytest.mark.parametrize(
    "layer", [S6(6, 4), RGLRU(6), S5(6, 8), LRU(6, 4), Mamba(6, 4), Hawk(6)], ids=lambda layer: type(layer).__name__
)
def test_padded_lengths(layer: nn.Module) -> None:
    """What lies beyond a sequence's length, NaN here, touches neither its output nor its state."""
    layer = copy.deepcopy(layer).cuda()
    x, lengths = torch.randn(3, 130, 6, device=CUDA), torch.tensor([130, 1, 77], device=CUDA)
    x[1, 1:], x[2, 77:] = torch.nan, torch.nan
    with torch.no_grad():
        y, state = layer(x, None, lengths)
        for i, l in enumerate(lengths.tolist()):
            alone, end = layer(x[i : i + 1, :l])
            assert_close(y[i : i + 1, :l], alone)
            assert torch.all(y[i, l:] == 0)
            assert_close(_row(state, i), end)


def _row(state: object, i: int) -> object:
    """The state of sequence i alone."""
    if isinstance(state, Tensor):
        return state[i : i + 1]
    assert isinstance(state, dict)
    return {name: _row(part, i) for name, part in state.items()}
