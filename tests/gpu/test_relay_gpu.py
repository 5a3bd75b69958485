"""Linear scans of few rows, whose chunks hand their states on in one launch: right, and the same bits each time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.scan import linear_scan, use

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which comes with a CUDA build of torch")
from resolvent.ops.linear_scan import triton as linear_triton
from resolvent.ops.linear_scan.relay.launch import Relay

CUDA = torch.device("cuda")
NARROW = {torch.float64: [torch.float32, torch.bfloat16], torch.complex128: [torch.complex64]}
EVERY = [(wide, narrow) for wide, each in NARROW.items() for narrow in each]


def draw(shape: tuple[int, int, int], wide: torch.dtype, constant: bool) -> list[Tensor]:
    """a, b, h0 and the upstream gradient; multipliers up to 1.001, and zeros among those that change with time."""
    real = torch.float64
    a = 0.5 + 0.501 * torch.rand((1, 1, shape[-1]) if constant else shape, dtype=real, device=CUDA)
    if constant:
        a = a.clamp(max=0.9999)
    else:
        a[:, 70::997] = 0
    a = torch.polar(a, 6.3 * torch.rand_like(a)) if wide.is_complex else a
    b, g = torch.randn(2, *shape, dtype=wide, device=CUDA)
    return [a, b, b[:, 1] * 2, g]


def run(given: list[Tensor], reverse: bool, start: Tensor | None) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in given[:3]]
    h = linear_scan(*leaves, reverse=reverse, start=start)
    return [h.detach(), *torch.autograd.grad(h, leaves, given[3])]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("wide", "narrow"), EVERY)
@pytest.mark.parametrize(
    ("shape", "reverse", "packed"), [((2, 5000, 128), True, True), ((1, 40_001, 64), False, False)]
)
def test_values_and_gradients(
    shape: tuple[int, int, int], reverse: bool, packed: bool, wide: torch.dtype, narrow: torch.dtype, constant: bool
) -> None:
    given = [t.to(narrow) for t in draw(shape, wide, constant)]
    start = torch.rand(shape[:2], device=CUDA) < 0.002 if packed else None
    found = run(given, reverse, start)
    with use("torch"):
        want = run([t.to(wide) for t in given], reverse, start)
    real = torch.bfloat16 if narrow == torch.bfloat16 else torch.float32
    assert_close(found[0].to(wide), want[0], dtype=real)
    for got, true in zip(found[1:], want[1:], strict=True):
        assert_close(got.to(wide), true, dtype=real, gradient=True)


@pytest.mark.parametrize(
    ("shape", "dtype", "constant"),
    [
        ((8, 4096, 64), torch.complex64, True),
        ((1, 65_536, 256), torch.float32, False),
        ((1, 65_537, 64), torch.bfloat16, False),
    ],
)
def test_the_same_bits_called_and_replayed(shape: tuple[int, int, int], dtype: torch.dtype, constant: bool) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a, b, _, g = (t.to(dtype) for t in draw(shape, wide, constant))

    def both() -> list[Tensor]:
        h = linear_triton._scan(a, b, None, False)
        return [h, *linear_triton._backward(g, a, h, None, False)]

    first = both()
    job = linear_triton._job(a, b, down=False, adjoint=False)
    assert isinstance(linear_triton._plan(job), Relay)
    for _ in range(100):
        assert all(torch.equal(x, y) for x, y in zip(both(), first, strict=True))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        kept = both()
    for _ in range(100):
        for x in kept:
            x.zero_()
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(kept, first, strict=True))


def test_two_streams_at_once() -> None:
    a, b, _, _ = (t.to(torch.float32) for t in draw((1, 20_000, 64), torch.float64, False))
    want, streams, found = linear_scan(a, b), [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(linear_scan(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(h, want) for h in found)
