"""Long convolutions with one kernel per channel, that of S4D: Toeplitz products, FFTs, Toeplitz products in blocks with
a state between them (those of S4, whose state is dense, as well), and the layer's own pass.

x is (d, b, l), channels first and time last, b times l stays the same, and values and input gradients of every way are
compared with float64 before it is timed: one that differs has no time. What depends on the kernel alone (tables, its
transform) is made beforehand, as an attack does. The layer's own pass takes (b, l, d); it has no gradient of a kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.case import clock
from resolvent.layers import S4, S4D
from resolvent.layers.contract import Layer
from resolvent.lowering.describe import describe
from resolvent.lowering.responses import impulse_responses, linked_responses
from resolvent.ops.filter.chained import make_chained
from resolvent.ops.filter.convolution import fast_length, fft_conv, fft_correlation
from resolvent.ops.filter.operation import Filter
from resolvent.ops.filter.toeplitz import toeplitz

WORKS = ("forward", "forward, input gradient", "kernel gradient")
ATTACK = WORKS[1]  # what ten of the eleven passes of a PGD-10 step are
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
ALLOWED = {"bfloat16": (2e-2, 2e-2), "float32": (1e-5, 1e-4)}  # values, gradients; ‖difference‖ / ‖truth‖
TRUE = 4  # sequences that are compared with float64


@dataclass(frozen=True)
class Plan:
    """d channels, b l samples of each, lengths, and the states of the layers."""

    lengths: tuple[int, ...] = (128, 512, 784, 1024, 2048, 4096, 8192, 16384, 65536)  # one that 128 does not divide
    samples: tuple[int, ...] = (2**18,)
    blocks: tuple[int, ...] = (256, 512, 1024)
    d: int = 128
    n: int = 64


class Transforms:
    """y = F⁻¹(F x · F k), ∂x = F⁻¹(F ∂y · ‾F k) and ∂k, over twice as many steps."""

    def __init__(self, k: Tensor) -> None:
        self.l, self.n = k.shape[-1], fast_length(2 * k.shape[-1] - 1)
        self.K = torch.fft.rfft(k, self.n, norm="forward")[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return self._through(x, self.K)

    def adjoint(self, g: Tensor) -> Tensor:
        return self._through(g, self.K.conj())

    def taps(self, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return (fft_correlation(x, g),)

    def _through(self, x: Tensor, K: Tensor) -> Tensor:
        X = torch.fft.rfft(x.float(), self.n)
        return torch.fft.irfft(X.mul_(K), self.n, norm="forward")[..., : self.l].to(x.dtype)


class Own:
    """S4D's pass inside `frozen()`; in float32 at least, whatever it is given."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]

    def both(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = self.forward(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]


def table(plan: Plan, device: torch.device, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A row for every number of samples, dtype and length, put into `rows` and told as it is found."""
    for samples in plan.samples:
        for dtype in DTYPES:
            for l in plan.lengths:
                rows.append(_row(plan, samples, dtype, l, device))
                yield _line(rows[-1])


@torch.no_grad()
def _row(plan: Plan, samples: int, name: str, l: int, device: torch.device) -> dict[str, Any]:
    b, dtype = max(1, samples // l), DTYPES[name]
    torch.manual_seed(0)
    diagonal, dense = (kind(plan.d, plan.n).to(device) for kind in (S4D, S4))
    x, g = (torch.randn(plan.d, b, l, device=device).to(dtype) for _ in range(2))
    row: dict[str, Any] = {"samples": samples, "dtype": name, "l": l, "b": b, "ways": {}}
    for layer, ways in ((diagonal, _ways(plan, diagonal, l, dtype)), (dense, _blocks(plan, dense, l, dtype, "dense "))):
        want = _truth(layer, x, g)
        for way, made in ways:
            got = made.forward(x)[:, :TRUE], made.adjoint(g)[:, :TRUE]
            row["ways"][way] = _timed(name, (got, want), _works(made, x, g), device)
            del made
    row["ways"]["layer"] = _layer(diagonal, name, (x, g), device)
    return row


def _ways(plan: Plan, layer: Layer, l: int, dtype: torch.dtype) -> Iterator[tuple[str, Filter | Transforms]]:
    k = impulse_responses(list(describe(layer).chain), l)[0].float()
    if l <= 16384:  # beyond, its table alone takes gigabytes
        yield "toeplitz", toeplitz(k, dtype)
    if l % 128:
        yield "padded", make_chained(F.pad(k, (0, -l % 128)), (), dtype)
    yield "fft", Transforms(k)
    yield from _blocks(plan, layer, l, dtype)


def _blocks(
    plan: Plan, layer: Layer, l: int, dtype: torch.dtype, kind: str = ""
) -> Iterator[tuple[str, Filter | Transforms]]:
    for T in plan.blocks:
        if l > T:
            ((k, *links),) = linked_responses(list(describe(layer).chain), l, T)
            yield f"{kind}blocks of {T}", make_chained(k.float(), tuple(links), dtype)


def _truth(layer: Layer, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """y and ∂x of the first sequences in float64."""
    (k,) = impulse_responses(list(describe(layer).chain), x.shape[-1])
    x, g = (t[:, :TRUE].double() for t in (x, g))
    return fft_conv(x, k[:, None]), fft_conv(g.flip(-1), k[:, None]).flip(-1)


def _works(way: Filter | Transforms, x: Tensor, g: Tensor) -> dict[str, Callable[[], object]]:
    both = lambda: (way.forward(x), way.adjoint(g))  # noqa: E731
    return dict(zip(WORKS, (lambda: way.forward(x), both, lambda: way.taps(x, g)), strict=True))


def _layer(layer: Layer, name: str, given: tuple[Tensor, Tensor], device: torch.device) -> dict[str, Any]:
    """The layer's own pass over the same numbers, laid out as it takes them."""
    x, g = (t.permute(1, 2, 0).contiguous() for t in given)  # (b, l, d)
    wide, some = Own(copy.deepcopy(layer).double()), slice(0, min(len(x), TRUE))
    with layer.frozen(), torch.enable_grad():
        own = Own(layer)
        got, want = own.both(x, g), wide.both(x[some].double(), g[some].double())
        works = {WORKS[0]: lambda: own.forward(x), ATTACK: lambda: own.both(x, g)}
        return _timed(name, (tuple(t[some] for t in got), want), works, device, graph=False)


def _timed(
    name: str,
    pair: tuple[tuple[Tensor, ...], ...],
    works: dict[str, Callable[[], object]],
    device: torch.device,
    graph: bool = True,
) -> dict[str, Any]:
    """Distances from float64, and the times, or why there are none."""
    got, want = pair
    errors = [float((a.double() - w).norm() / w.norm()) for a, w in zip(got, want, strict=True)]
    allowed = [ALLOWED[name][0], *[ALLOWED[name][1]] * (len(errors) - 1)]
    wrong = [f"{e:.1e} where {most:.0e} is allowed" for e, most in zip(errors, allowed, strict=True) if not e <= most]
    found: dict[str, Any] = {"errors": dict(zip(("values", "input gradient", "kernel gradient"), errors, strict=False))}
    if wrong:
        return found | {"refused": "; ".join(wrong)}
    return found | {"ms": {name: round(_ms(work, device, graph), 4) for name, work in works.items()}}


def _ms(work: Callable[[], object], device: torch.device, graph: bool) -> float:
    """With `graph` as a CUDA graph, as recorded steps run filters; else called from Python, as layers are."""
    work()
    if device.type != "cuda":
        return min(clock(work, device) for _ in range(3))
    from triton.testing import do_bench, do_bench_cudagraph

    if graph:
        return float(do_bench_cudagraph(work, rep=40, return_mode="median"))
    return float(do_bench(work, warmup=5, rep=40, return_mode="median"))


def _line(row: dict[str, Any]) -> str:
    times = lambda way: " / ".join(f"{ms:.3f}" for ms in way["ms"].values())  # noqa: E731
    cells = [f"{name} {way['refused'] if 'refused' in way else times(way)}" for name, way in row["ways"].items()]
    return f"{row['samples']} {row['dtype']} l {row['l']} b {row['b']}, ms ({', '.join(WORKS)}): {'; '.join(cells)}"


def quickest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every number of samples, dtype and length: the way that an attack's passes take the least time in."""
    found = []
    for row in rows:
        for kind in ("", "dense "):
            known = {name: way["ms"][ATTACK] for name, way in row["ways"].items() if ATTACK in way.get("ms", {})}
            known = {name: ms for name, ms in known.items() if name.startswith(kind) and (kind or "dense" not in name)}
            if known:
                best = min(known, key=lambda name: known[name])
                found.append({k: row[k] for k in ("samples", "dtype", "l")} | {"way": best, "ms": known[best]})
    return found
