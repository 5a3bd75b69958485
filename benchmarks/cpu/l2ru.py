"""The price of a prescribed gain: L2RU beside the LRU at the same size, forward and with backward.

    python -m benchmarks.cpu.l2ru [--threads 2]

Prints milliseconds (best of rounds in which every layer has its turn) and the ratio to the LRU. The scan forms must
stay within twice the LRU's forward pass; the exit status says whether they do. "tables" is the share of making A, B, C,
D from the parameters, which `frozen()` pays once. Every layer is compared with its float64 self before it is timed.
Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from resolvent.layers import L2RU, LRU, Layer

SHAPES = ((16, 784, 128, 64), (4, 8192, 64, 64))  # batch, length, channels, complex states
ALLOWED = 2.0
LARGEST_ERROR = 1e-4  # float32 against float64, relative to the largest value


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=30)
    settings = options.parse_args()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    worst = max(_compare(shape, settings.rounds) for shape in SHAPES)
    print(f"largest forward ratio of a scan form: {worst:.2f}, allowed {ALLOWED}")
    return 0 if worst <= ALLOWED else 1


def _compare(shape: tuple[int, int, int, int], rounds: int) -> float:
    """Print one table; returns the largest forward ratio of a scan form."""
    b, l, d, n = shape
    x = torch.randn(b, l, d)
    layers: dict[str, Layer] = {
        "LRU": LRU(d, n),
        "L2RU diagonal": L2RU(d, n),
        "L2RU contraction": L2RU(d, n, form="contraction"),
        "L2RU complete": L2RU(d, form="complete"),
    }
    print(f"\n{b} x {l}, {d} channels, {n} complex states ({d} real ones in the complete form)")
    for layer in layers.values():
        _check(layer, x[:1, :200])
    columns = {
        "forward": _forward(layers, x, rounds),
        "frozen": _frozen(layers, x, rounds),
        "with backward": _backward(layers, x, max(3, rounds // 3)),
        "tables": _tables(layers, rounds),
    }
    print(" " * 18, " ".join(f"{head:>14} {'ratio':>6}" for head in columns))
    for name in layers:
        print(f"{name:18s}", " ".join(_cell(column, name) for column in columns.values()), flush=True)
    forward = columns["forward"]
    return max(forward[name] / forward["LRU"] for name in ("L2RU diagonal", "L2RU contraction"))


def _cell(column: dict[str, float], name: str) -> str:
    if name not in column:
        return " " * 21
    ratio = f"{column[name] / column['LRU']:6.2f}" if "LRU" in column else " " * 6
    return f"{column[name]:14.2f} {ratio}"


def _best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, the best of `rounds`, one after the other so that a slow moment meets all."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def _forward(layers: dict[str, Layer], x: Tensor, rounds: int) -> dict[str, float]:
    with torch.no_grad():
        return _best({name: partial(layer, x) for name, layer in layers.items()}, rounds)


def _frozen(layers: dict[str, Layer], x: Tensor, rounds: int) -> dict[str, float]:
    with ExitStack() as stack:
        for layer in layers.values():
            stack.enter_context(layer.frozen())
        return _forward(layers, x, rounds)


def _backward(layers: dict[str, Layer], x: Tensor, rounds: int) -> dict[str, float]:
    x = x.clone().requires_grad_()
    return _best({name: partial(_gradients, layer, x) for name, layer in layers.items()}, rounds)


def _gradients(layer: Layer, x: Tensor) -> None:
    layer(x)[0].sum().backward()


def _tables(layers: dict[str, Layer], rounds: int) -> dict[str, float]:
    with torch.no_grad():
        return _best({name: layer.matrices for name, layer in layers.items() if isinstance(layer, L2RU)}, rounds)


def _check(layer: Layer, x: Tensor) -> None:
    with torch.no_grad():
        want = copy.deepcopy(layer).double()(x.double())[0]
        error = float((layer(x)[0] - want).abs().max() / want.abs().max())
    if error > LARGEST_ERROR:
        raise SystemExit(f"{type(layer).__name__} is wrong by {error:.1e}; no speed is printed.")


if __name__ == "__main__":
    sys.exit(main())
