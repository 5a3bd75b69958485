"""Where Toeplitz products overtake the FFT, and where a few taps beat both: the tables behind the choices in ssm.

    python -m benchmarks.cpu.crossover [--threads 1] [--backward]  short ones on a CPU: `crossover` in ssm.convolution
    python -m benchmarks.cpu.crossover --device cuda               long ones on a GPU: `LONGEST`, `BLOCKS` in lowering

The first prints milliseconds, best of many, for u (rows, channels, length) with one kernel per channel; it needs a
quiet machine. The second (`crossover_long`) prints medians and writes benchmarks/results/crossover_gpu.json; `--tiny`
tries it out on any device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.about import RESULTS, about, accelerator, placed
from benchmarks.gpu import crossover_long
from resolvent.ops.filter.convolution import causal_conv, crossover, direct_conv, fft_conv, toeplitz_conv

RECORD = RESULTS / "crossover_gpu.json"
SAMPLES = 65_536  # rows x channels x length is kept near this


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--device", default="cpu")
    options.add_argument("--backward", action="store_true", help="time the gradients of u and k as well")
    options.add_argument("--tiny", action="store_true", help="the second table on tiny shapes, to try it out")
    options.add_argument("--out", type=Path, help="where the second table goes; of a trial, in out/")
    options.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    settings = options.parse_args()
    settings.out = placed(options, settings.out, RECORD, settings.device, settings.tiny)
    torch.set_num_threads(settings.threads)
    if settings.tiny or not settings.device.startswith("cpu"):
        return _long(settings)
    print(f"{'rows':>5} {'length':>6} {'taps':>6} {'fft':>8} {'toeplitz':>8} {'direct':>8}  chosen, limit")
    for rows in (1, 8, 32, 128):
        for length in (16, 32, 64, 128, 256, 512):
            _row(rows, length, length, settings)
    for taps in (2, 4, 8, 16, 32):
        _row(16, 512, taps, settings)
    return 0


def _long(settings: argparse.Namespace) -> int:
    """The second table; status 1 where some way was wrong."""
    plan = crossover_long.Plan((128, 256), (512,), (32,), 2, 4) if settings.tiny else crossover_long.Plan()
    head = about(accelerator(settings.device), settings.commit) | {"d": plan.d, "states": plan.n}
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for line in crossover_long.table(plan, torch.device(settings.device), rows):
        print(line, flush=True)
        record = head | {"quickest": crossover_long.quickest(rows), "rows": rows}
        settings.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")  # a run cut short leaves some
    for best in record["quickest"]:
        print(", ".join(f"{name} {value}" for name, value in best.items()))
    return 1 if any("refused" in way for row in rows for way in row["ways"].values()) else 0


def _row(rows: int, length: int, taps: int, settings: argparse.Namespace) -> None:
    channels = max(1, SAMPLES // (rows * length))
    u = torch.randn(rows, channels, length, device=settings.device, requires_grad=settings.backward)
    k = torch.randn(channels, taps, device=settings.device, requires_grad=settings.backward)
    methods: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"fft": fft_conv, "toeplitz": toeplitz_conv}
    if taps <= 32:
        methods["direct"] = direct_conv
    times = {name: _best(conv, u, k) for name, conv in methods.items()}
    chosen = _best(causal_conv, u, k)
    cells = " ".join(f"{times.get(name, float('nan')):8.3f}" for name in ("fft", "toeplitz", "direct"))
    print(f"{rows:5d} {length:6d} {taps:6d} {cells}  {chosen:8.3f} {crossover(rows):5d}", flush=True)


def _best(conv: Callable[[Tensor, Tensor], Tensor], u: Tensor, k: Tensor, repeats: int = 30) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        y = conv(u, k)
        if y.requires_grad:
            torch.autograd.grad(y.sum(), (u, k))
        if u.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


if __name__ == "__main__":
    sys.exit(main())
