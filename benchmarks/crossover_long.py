"""Long convolutions with one kernel per channel: Toeplitz products, FFTs, and a layer's own pass by blocks.

x is (d, b, l), channels first and time last, b times l stays the same, and every way is compared with float64 before it
is timed: one that differs has no time. What depends on the kernel alone (tables, its transform) is made beforehand, as
an attack does. A layer's own pass takes (b, l, d) and carries a state from block to block; it has no kernel, and so no
gradient of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_case import clock
from resolvent.layers import S4D
from resolvent.ssm.convolution import fft_conv
from resolvent.ssm.filter import Filter
from resolvent.ssm.fourier import fourier
from resolvent.ssm.toeplitz import toeplitz

WORKS = ("forward", "forward, input gradient", "kernel gradient")
ATTACK = WORKS[1]  # what ten of the eleven passes of a PGD-10 step are
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
ALLOWED = {"bfloat16": (2e-2, 2e-2), "float32": (1e-5, 1e-4)}  # values, gradients; ‖difference‖ / ‖truth‖


@dataclass(frozen=True)
class Plan:
    """d channels, b l samples of each, lengths, and the states of the layer."""

    lengths: tuple[int, ...] = (128, 256, 512, 784, 1024, 2048, 4096, 8192, 16384)  # one that 128 does not divide
    samples: tuple[int, ...] = (2**18, 2**20)
    d: int = 128
    n: int = 64


class Own:
    """S4D's pass inside `frozen()`; in float32 at least, whatever it is given."""

    def __init__(self, layer: S4D) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]

    def both(self, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = self.forward(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]


def table(plan: Plan, device: torch.device, told: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every number of samples, dtype and length, told as it is found."""
    rows = []
    told(
        f"{'samples':>8} {'dtype':>8} {'l':>6} {'b':>5}  "
        + "  ".join(f"{w:>28}" for w in WORKS)
        + "   ms: Toeplitz, FFT, layer"
    )
    for samples in plan.samples:
        for dtype in DTYPES:
            for l in plan.lengths:
                rows.append(_row(plan, samples, dtype, l, device))
                told(_line(rows[-1]))
    return rows


@torch.no_grad()
def _row(plan: Plan, samples: int, name: str, l: int, device: torch.device) -> dict[str, Any]:
    b, dtype = max(1, samples // l), DTYPES[name]
    torch.manual_seed(0)
    k = torch.randn(plan.d, l, device=device) / l**0.5
    x, g = (torch.randn(plan.d, b, l, device=device).to(dtype) for _ in range(2))
    want = _truth(k, x, g)
    row: dict[str, Any] = {"samples": samples, "dtype": name, "l": l, "b": b, "ways": {}}
    for way, made in {"toeplitz": toeplitz(k, dtype), "fft": fourier(k)}.items():
        got = made.forward(x), made.adjoint(g), *made.taps(x, g)
        row["ways"][way] = _timed(name, (got, want), _works(made, x, g), device)
    del want, got, made
    row["ways"]["layer"] = _layer(plan, name, (x, g), device)
    return row


def _truth(k: Tensor, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, ∂x and ∂k in float64, by autograd."""
    with torch.enable_grad():
        k, x = (t.double().requires_grad_() for t in (k, x))
        y = fft_conv(x, k[:, None])
        return y.detach(), *torch.autograd.grad(y, (x, k), g.double())


def _works(way: Filter, x: Tensor, g: Tensor) -> dict[str, Callable[[], object]]:
    both = lambda: (way.forward(x), way.adjoint(g))  # noqa: E731
    return dict(zip(WORKS, (lambda: way.forward(x), both, lambda: way.taps(x, g)), strict=True))


def _layer(plan: Plan, name: str, given: tuple[Tensor, Tensor], device: torch.device) -> dict[str, Any]:
    """The layer's own pass over the same numbers, laid out as it takes them."""
    x, g = (t.permute(1, 2, 0).contiguous() for t in given)  # (b, l, d)
    layer = S4D(plan.d, plan.n).to(device)
    wide, some = Own(copy.deepcopy(layer).double()), slice(0, min(len(x), 4))
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
    cells = []
    for work in WORKS:
        found = [way["ms"].get(work) if "ms" in way else None for way in row["ways"].values()]
        cells.append(" ".join(f"{'-' if ms is None else f'{ms:.3f}':>9}" for ms in found))
    wrong = "; ".join(f"{name}: {way['refused']}" for name, way in row["ways"].items() if "refused" in way)
    return f"{row['samples']:8d} {row['dtype']:>8} {row['l']:6d} {row['b']:5d}  {'  '.join(cells)}  {wrong}".rstrip()


def crossovers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every number of samples, dtype and work: how far products are quicker, 0 where they never are."""
    found = []
    for samples, dtype in dict.fromkeys((row["samples"], row["dtype"]) for row in rows):
        own = [row["ways"] | {"l": row["l"]} for row in rows if (row["samples"], row["dtype"]) == (samples, dtype)]
        for work in WORKS:
            rivals = ("fft",) if work == WORKS[2] else ("fft", "layer")
            reach = {f"over {rival}": _reach(own, work, rival) for rival in rivals}
            found.append({"samples": samples, "dtype": dtype, "work": work, **reach})
    return found


def _reach(rows: list[dict[str, Any]], work: str, rival: str) -> int:
    reach = 0
    for row in sorted((row for row in rows if row["l"] % 128 == 0), key=lambda row: row["l"]):
        ours, other = (row[way].get("ms", {}).get(work) for way in ("toeplitz", rival))
        if ours is None or (other is not None and ours > other):
            break
        reach = row["l"]
    return reach
