"""Cost against length, 64 to 65,536: linear for scans and layers, l log l for the FFT, and no cliff.

    python -m benchmarks.cpu.scaling        writes benchmarks/results/scaling.json and scaling.svg

A point lies on a cliff when doubling the length costs more than four times as much. The state that streaming carries is
listed beside it: its size does not depend on the length.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.about import RESULTS, about, processor
from resolvent.timing.measure import median_ms

LENGTHS = [64 * 2**i for i in range(11)]
CLIFF = 4.0


def works(l: int) -> dict[str, Callable[[], object]]:
    from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6
    from resolvent.scan import linear_scan, selective_scan
    from resolvent.ssm import fft_conv

    torch.manual_seed(0)
    a, x = torch.rand(2, l, 32), torch.randn(2, l, 32)
    B, C = torch.randn(2, l, 16), torch.randn(2, l, 16)
    A, dt = -torch.rand(32, 16), torch.rand(2, l, 32)
    k = torch.randn(32, l)
    out: dict[str, Callable[[], object]] = {
        "linear scan": lambda: linear_scan(a, x),
        "selective scan": lambda: selective_scan(x, dt, A, B, C),
        "FFT convolution": lambda: fft_conv(x.mT, k),
    }
    made: list[nn.Module] = [S4(32), S4D(32), DSS(32), EMA(32), S5(32), LRU(32), S6(32), RGLRU(32)]
    for layer in made:
        out[f"{type(layer).__name__} layer"] = lambda layer=layer: layer(x)
    return out


def state_bytes() -> dict[str, int]:
    from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6

    sizes = {}
    for layer in (S4(32), S4D(32), DSS(32), EMA(32), S5(32), LRU(32), S6(32), RGLRU(32)):
        _, state = layer(torch.randn(1, 300, 32))
        parts = state if isinstance(state, tuple) else tuple(state.values()) if isinstance(state, dict) else (state,)
        sizes[type(layer).__name__] = sum(p.numel() * p.element_size() for p in parts)
    return sizes


def drawn(times: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 5))
    for name, ms in times.items():
        axis.loglog(LENGTHS, ms, marker="o", markersize=3, label=name, base=2)
    guide = [0.02 * l / LENGTHS[0] for l in LENGTHS]
    axis.loglog(LENGTHS, guide, "k--", linewidth=0.8, label="slope 1", base=2)
    axis.set(xlabel="length l", ylabel="milliseconds, forward", title="Cost against length (b=2, d=32, float32)")
    axis.legend(fontsize=7, ncol=2)
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(2)
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        for l in LENGTHS:
            for name, work in works(l).items():
                times.setdefault(name, []).append(median_ms(work, budget_s=0.4, most=50))
            print(f"l = {l:6d}  " + "  ".join(f"{name} {ms[-1]:.2f}" for name, ms in times.items()), flush=True)
    cliffs = [
        f"{name}: {LENGTHS[i]} -> {LENGTHS[i + 1]} costs {ms[i + 1] / ms[i]:.1f} times as much"
        for name, ms in times.items()
        for i in range(len(ms) - 1)
        if ms[i + 1] > CLIFF * ms[i]
    ]
    growth = {name: ms[-1] / ms[-5] / 16 for name, ms in times.items()}  # 1 is linear over the last 16-fold growth
    found = {
        **about(processor(2)),
        "lengths": LENGTHS,
        "milliseconds": times,
        "growth_4096_to_65536_over_linear": growth,
        "cliffs": cliffs,
        "streaming_state_bytes": state_bytes(),
    }
    results = RESULTS
    results.mkdir(exist_ok=True)
    (results / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    drawn(times, results / "scaling.svg")
    print("\ngrowth over linear, 4,096 to 65,536: " + ", ".join(f"{n} {g:.2f}" for n, g in growth.items()))
    print("cliffs: " + ("; ".join(cliffs) or "none"))
    print(f"record: {results / 'scaling.json'}, figure: {results / 'scaling.svg'}")


if __name__ == "__main__":
    main()
