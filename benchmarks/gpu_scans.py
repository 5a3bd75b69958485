"""The scans on one GPU: checked against float64 first, then timed, each beside its floor.

    python benchmarks/gpu_scans.py --commit $(git rev-parse --short HEAD)
    python benchmarks/gpu_scans.py --only selective --out somewhere.json

The floor of a row is the larger of two times: the fewest bytes it can move (every input read once, every output
written once) at the rate of a copy, and its exponentials at the rate at which a kernel of nothing else computes them;
both rates are measured in the same run. A row whose values or gradients differ from the float64 reference stops the
run before any of its speeds is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.testing import do_bench

from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance
from resolvent.scan import linear_scan, selective_scan, use

RESULTS = Path(__file__).parent / "results" / "gpu_scans.json"
Shape = tuple[int, int, int]
Outcome = tuple[list[Tensor], list[Tensor]]  # values, gradients


@dataclass(frozen=True)
class Timing:
    """One number of a row: what runs, the fewest bytes and exponentials it needs, and what it must reach."""

    name: str
    bytes: float
    exponentials: float = 0.0
    target_ms: float | None = None
    beats: str = ""


@dataclass
class Result:
    row: str
    name: str
    ms: float
    tb_per_s: float
    floor_ms: float
    of_floor: float  # floor over measured: 1 is the limit
    target_ms: float | None
    met: bool | None
    beats: str
    error: dict[str, float] = field(default_factory=dict)


@triton.jit
def _exp2_kernel(out: tl.tensor, rounds: tl.tensor, BLOCK: tl.constexpr) -> None:
    x = tl.arange(0, BLOCK).to(tl.float32) / BLOCK
    for _ in range(rounds):
        x = tl.exp2(-x)
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), x)


def copy_rate() -> float:
    """Bytes a second, read plus written."""
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / (1e-3 * milliseconds(lambda: y.copy_(x)))


def exponential_rate() -> float:
    """ex2 a second when nothing else is done."""
    programs, block, rounds = 132 * 16, 2048, 1000
    out = torch.empty(programs * block, device="cuda")
    ms = milliseconds(lambda: _exp2_kernel[(programs,)](out, rounds, BLOCK=block, num_warps=4))
    return programs * block * rounds / (1e-3 * ms)


def milliseconds(work: Callable[[], Any]) -> float:
    return float(do_bench(work, warmup=50, rep=200, return_mode="median"))


# -- rows --------------------------------------------------------------------------------------------------------------


class LinearRow:
    """h_t = a_t h_{t-1} + b_t; shape (b, l, n), in memory as it is or with time last."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, time_last: bool, constant: bool = False
    ) -> None:
        self.shape, self.dtype, self.time_last, self.constant = shape, dtype, time_last, constant
        kind = "complex" if dtype.is_complex else "real"
        layout = "time last" if time_last else "channels last"
        what = "fixed a" if constant else "a per step"
        self.name = f"linear scan, {kind}, {str(dtype)[6:]}, (b, l, n) = {shape}, {layout}, {what}"

    def inputs(self) -> list[Tensor]:
        """a, b and the upstream gradient."""
        n = self.shape[-1]

        def place(x: Tensor) -> Tensor:
            return x.mT.contiguous().mT if self.time_last and x.shape[-2] > 1 else x

        size = 0.3 + 0.69 * torch.rand((1, 1, n) if self.constant else self.shape, device="cuda")
        a = torch.polar(size, 6.3 * torch.rand_like(size)) if self.dtype.is_complex else size
        rest = (torch.randn(self.shape, device="cuda", dtype=self.dtype) for _ in range(2))
        return [place(x.to(self.dtype)) for x in (a, *rest)]

    def run(self, x: list[Tensor]) -> Outcome:
        a, b = (t.detach().requires_grad_() for t in x[:2])
        h = linear_scan(a, b)
        return [h.detach()], list(torch.autograd.grad(h, (a, b), x[2]))

    def timings(self) -> list[tuple[Timing, Callable[[list[Tensor]], Callable[[], Any]]]]:
        b, l, n = self.shape
        unit = b * l * n * torch.empty((), dtype=self.dtype).element_size()
        known = self.shape == (8, 16384, 1536) and self.time_last
        goal = {torch.float32: (0.58, "accelerated-scan 0.58 ms"), torch.complex64: (1.4, "accelerated-scan 2.92 ms")}
        target, beats = goal[self.dtype] if known and self.dtype in goal else (None, "")
        reads = 1 if self.constant else 2
        return [
            (Timing("forward", (reads + 1) * unit, 0.0, target, beats), self._forward),
            (Timing("backward", (2 * reads + 1) * unit), self._backward),
        ]

    def _forward(self, x: list[Tensor]) -> Callable[[], Any]:
        return lambda: linear_scan(x[0], x[1])

    def _backward(self, x: list[Tensor]) -> Callable[[], Any]:
        a, b = (t.detach().requires_grad_() for t in x[:2])
        h = linear_scan(a, b)
        return lambda: torch.autograd.grad(h, (a, b), x[2], retain_graph=True)


class SelectiveRow:
    """The fused scan of Mamba with skip and gate; shape (batch, channels, length)."""

    def __init__(self, shape: Shape, n: int, dtype: torch.dtype, goals: dict[str, tuple[float, str]]) -> None:
        self.shape, self.n, self.dtype, self.goals = shape, n, dtype, goals
        self.name = f"selective scan, {str(dtype)[6:]}, (b, d, l) = {shape}, n = {n}, skip and gate"

    def inputs(self) -> list[Tensor]:
        """u, dt, A, B, C, D, z and the upstream gradient."""
        b, d, l = self.shape
        wide, slim = (b, l, d), (b, l, self.n)
        u, z, g = (torch.randn(wide, device="cuda").to(self.dtype) for _ in range(3))
        B, C = (torch.randn(slim, device="cuda").to(self.dtype) for _ in range(2))
        dt = (0.1 * torch.rand(wide, device="cuda")).to(self.dtype)
        A = -torch.arange(1, self.n + 1, device="cuda", dtype=torch.float32).expand(d, -1).contiguous()
        return [u, dt, A, B, C, torch.randn(d, device="cuda"), z, g]

    def run(self, x: list[Tensor]) -> Outcome:
        leaves = [t.detach().requires_grad_() for t in x[:7]]
        y, h = selective_scan(*leaves)
        return [y.detach(), h.detach()], list(torch.autograd.grad(y, leaves, x[7]))

    def timings(self) -> list[tuple[Timing, Callable[[list[Tensor]], Callable[[], Any]]]]:
        b, d, l = self.shape
        size = torch.empty((), dtype=self.dtype).element_size()
        wide, slim, updates = b * d * l * size, b * l * self.n * size, float(b * d * l * self.n)
        gates = 2.0 * b * d * l  # an ex2 and a reciprocal, which the same unit computes

        def timing(name: str, moved: float, exponentials: float) -> Timing:
            return Timing(name, moved, exponentials, *self.goals.get(name, (None, "")))

        return [
            (timing("forward", 4 * wide + 2 * slim, updates + gates), self._forward),
            (timing("forward, states saved", 4 * wide + 2 * slim + updates / 32 * 4, updates + gates), self._saving),
            (timing("backward", 7 * wide + 4 * slim + updates / 32 * 4, 2 * updates + gates), self._backward),
        ]

    def _forward(self, x: list[Tensor]) -> Callable[[], Any]:
        return lambda: selective_scan(*x[:7])

    def _saving(self, x: list[Tensor]) -> Callable[[], Any]:
        leaves = [t.detach().requires_grad_() for t in x[:7]]
        return lambda: selective_scan(*leaves)

    def _backward(self, x: list[Tensor]) -> Callable[[], Any]:
        leaves = [t.detach().requires_grad_() for t in x[:7]]
        y, _ = selective_scan(*leaves)
        return lambda: torch.autograd.grad(y, leaves, x[7], retain_graph=True)


def rows() -> list[LinearRow | SelectiveRow]:
    real, pair, half = torch.float32, torch.complex64, torch.bfloat16
    big = (8, 16384, 1536)
    mamba = "mamba_ssm CUDA {} ms"
    return [
        LinearRow(big, real, True),
        LinearRow(big, pair, True),
        LinearRow(big, real, False),
        LinearRow(big, pair, False),
        LinearRow(big, half, False),
        LinearRow((256, 1024, 64), pair, False, constant=True),
        LinearRow((8, 4096, 64), pair, False, constant=True),
        LinearRow((1, 65536, 256), real, False),
        SelectiveRow((256, 256, 1024), 16, half, {
            "forward": (0.55, mamba.format(1.13)), "backward": (2.0, mamba.format("6.10")),
        }),
        SelectiveRow((8, 1024, 16384), 16, half, {
            "forward": (1.2, mamba.format(2.76)), "backward": (3.5, mamba.format(9.48)),
        }),
        SelectiveRow((256, 256, 1024), 16, torch.float32, {}),
    ]  # fmt: skip


# -- check, then time --------------------------------------------------------------------------------------------------


def widened(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def errors(row: LinearRow | SelectiveRow, x: list[Tensor]) -> dict[str, float]:
    """Distances from the float64 reference, relative to its scale; refuses what is too far off."""
    found = row.run(x)
    with use("torch"):
        want = row.run([widened(t) for t in x])
    real = {torch.complex64: torch.float32}.get(row.dtype, row.dtype)
    result = {}
    for name, got, true, table in (("values", found[0], want[0], VALUES), ("gradients", found[1], want[1], GRADIENTS)):
        result[name] = max(distance(widened(g), t) for g, t in zip(got, true, strict=True))
        if not result[name] <= table[real]:
            raise SystemExit(
                f"{row.name}: {name} differ by {result[name]:.1e}, allowed {table[real]:.0e}; no speed printed"
            )
    return result


def measure(row: LinearRow | SelectiveRow, copy: float, exps: float) -> list[Result]:
    torch.manual_seed(0)
    x = row.inputs()
    error = errors(row, x)
    torch.cuda.empty_cache()
    results = []
    for timing, prepare in row.timings():
        ms = milliseconds(prepare(x))
        floor = 1e3 * max(timing.bytes / copy, timing.exponentials / exps)
        met = None if timing.target_ms is None else ms <= timing.target_ms
        rate = timing.bytes / ms * 1e-9
        values = (row.name, timing.name, ms, rate, floor, floor / ms, timing.target_ms, met, timing.beats, error)
        results.append(Result(*values))
        show(results[-1])
    return results


def show(r: Result) -> None:
    goal = "" if r.target_ms is None else f"  target {r.target_ms:.2f}: {'met' if r.met else 'missed'} ({r.beats})"
    print(
        f"{r.row:88s} {r.name:21s} {r.ms:8.3f} ms {r.tb_per_s:6.2f} TB/s {r.of_floor:6.0%} of floor{goal}", flush=True
    )


def compile_ahead(count: int) -> None:
    """Every row once, each in a process of its own: kernels compile side by side and wait in Triton's cache."""
    command = [sys.executable, __file__, "--row"]
    running = [subprocess.Popen([*command, str(i)], stdout=subprocess.DEVNULL) for i in range(count)]
    for process in running:
        process.wait()


def run_once(row: LinearRow | SelectiveRow) -> None:
    x = row.inputs()
    row.run(x)
    for _, prepare in row.timings():
        prepare(x)()
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name holds this word")
    parser.add_argument("--commit", default="unknown", help="what was measured, for the record")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--row", type=int, help="run this row once, so that its kernels are compiled, and measure nothing"
    )
    args = parser.parse_args()
    if args.row is not None:
        run_once(rows()[args.row])
        return
    compile_ahead(len(rows()))
    copy, exps = copy_rate(), exponential_rate()
    print(f"copy {copy * 1e-12:.2f} TB/s, exponentials {exps * 1e-12:.2f} T/s", flush=True)
    record = {
        "device": torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": args.commit,
        "command": f"python {' '.join(sys.argv)}",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_tb_per_s": copy * 1e-12,
        "exponentials_t_per_s": exps * 1e-12,
    }
    results: list[Result] = []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for row in rows():
        if args.only in row.name:
            results += measure(row, copy, exps)
            record_rows = {"rows": [asdict(r) for r in results]}
            args.out.write_text(json.dumps(record | record_rows, indent=1) + "\n")  # a run cut short leaves what it has


if __name__ == "__main__":
    main()
