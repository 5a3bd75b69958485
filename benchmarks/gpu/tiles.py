"""Which tiles are quickest for the fused blocks, the entry and the Toeplitz products of an adversarial step.

    python -m benchmarks.gpu.tiles                          # to benchmarks/results/tiles_gpu.json
    python -m benchmarks.gpu.tiles --only entry product

Every candidate is compiled first, in many processes at once, and its outputs are compared with those of the tile in
use; then all are timed, one after another, by the device's clock with its cache emptied before each run. The record has
every time; the table the quickest of each kernel beside the one in use.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.about import RESULTS, about, accelerator
from resolvent.lowering.gpu import tiles
from resolvent.lowering.gpu.fused_torch import Kept, Weights
from resolvent.lowering.gpu.tiles import Tile

SHAPE = (128, 256, 1024)  # (d, b, l)
FAR = 2e-2  # of bf16 outputs from those of the tile in use, relative, by norm
PROCESSES = 14
LOW, FINE = torch.bfloat16, torch.float32
Output = list[Tensor]


@dataclass(frozen=True)
class Kernel:
    """One kernel with its inputs: `run(candidate)`; `used` is the candidate that the library takes."""

    name: str
    used: Any
    candidates: list[Any]
    run: Callable[[Any], Output]


def main() -> int:
    settings = _settings()
    chosen = [k for k in kernels() if any(word in k.name for word in settings.only)]
    if settings.share is not None:
        return _compile_share(chosen, settings.share)
    record = about(accelerator("cuda"), settings.commit) | {"shape": SHAPE, "kernels": []}
    with_share = [sys.executable, "-m", "benchmarks.gpu.tiles", "--only", *settings.only, "--share"]
    for process in [subprocess.Popen([*with_share, str(i)]) for i in range(PROCESSES)]:
        process.wait()
    for kernel in chosen:
        row = _time(kernel)
        record["kernels"].append(row)
        print(f"{row['name']:34} in use {row['used']} {row['used_us']} us, quickest {row['quickest']}", flush=True)
        settings.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {settings.out}")
    return 0


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="kernels whose name holds one of these")
    parser.add_argument("--share", type=int, help="compile this share of the candidates and no more")
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path, default=RESULTS / "tiles_gpu.json")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU, and torch sees none")
    return settings


def _compile_share(chosen: list[Kernel], share: int) -> int:
    pairs = [(kernel, candidate) for kernel in chosen for candidate in kernel.candidates]
    for kernel, candidate in pairs[share::PROCESSES]:
        _attempt(kernel, candidate)
    return 0


def _attempt(kernel: Kernel, candidate: Any) -> Output | str:
    try:
        found = kernel.run(candidate)
        torch.cuda.synchronize()
    except Exception as error:  # whatever a compiler or launcher throws is a line of the record
        return str(error).strip().splitlines()[0][:120]
    return found


def _time(kernel: Kernel) -> dict[str, Any]:
    from triton.testing import do_bench

    want = [t.clone() for t in kernel.run(kernel.used)]
    took: dict[str, Any] = {}
    for candidate in kernel.candidates:
        found = _attempt(kernel, candidate)
        if isinstance(found, str):
            took[_name(candidate)] = found
        elif max(map(_distance, found, want)) > FAR:
            took[_name(candidate)] = "other numbers"
        else:
            ms = do_bench(lambda c=candidate: kernel.run(c), warmup=3, rep=12, return_mode="median")
            took[_name(candidate)] = round(1e3 * ms, 1)
    times = {name: t for name, t in took.items() if isinstance(t, float)}
    best = sorted(times, key=lambda name: times[name])[:3]
    used = _name(kernel.used)
    return {"name": kernel.name, "used": used, "used_us": took[used], "quickest": {n: times[n] for n in best},
            "us": took}  # fmt: skip


def _name(candidate: Any) -> str:
    return "/".join(str(part) for part in candidate)


def _distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


# -- the kernels -------------------------------------------------------------------------------------------------------


def kernels() -> list[Kernel]:
    found = [k for sort in ("plain", "bent", "scaled", "entry") for k in _fused(sort)]
    return [*found, *_products(SHAPE[2]), *_products(784)]


def _grid(used: Tile) -> list[Tile]:
    made = [Tile(*t) for t in itertools.product((32, 64), (4, 8), (1, 2, 3), (1, 2, 3))]
    return made if used in made else [used, *made]


def _fused(sort: str) -> Iterator[Kernel]:
    """Columns, warps, tiles under way and programs to a multiprocessor; forward, backward, backward with sums."""
    from resolvent.lowering.gpu import fused_triton as own

    place = (sort, FINE if sort == "entry" else LOW)
    w, y, r, g = _weights(sort), *_inputs(sort)

    def forward(tile: Tile) -> Output:
        with _tile(place, 0, tile):
            out, kept = own.forward(y, r, w)
        assert kept is not None
        return [out, kept.unit]

    def backward(tile: Tile, learn: bool) -> Output:
        kept = _keep(own, y, r, w)
        with _tile(place, 2 if learn else 1, tile):
            gz, gy, _ = own.backward(g, kept, y if learn or sort == "scaled" else None, w, learn)
        return [gy] if sort == "entry" and not learn else [gz, gy]

    for which, (name, run) in enumerate(
        (("forward", forward), ("backward", lambda t: backward(t, False)), ("with sums", lambda t: backward(t, True)))
    ):
        yield Kernel(f"{sort}, {name}", tiles.TILES[place][which], _grid(tiles.TILES[place][which]), run)


_made: dict[int, Kept] = {}


def _keep(own: Any, y: Tensor, r: Tensor | None, w: Weights) -> Kept:
    if id(w) not in _made:
        _made[id(w)] = own.forward(y, r, w)[1]
    return _made[id(w)]


@contextmanager
def _tile(place: tuple[str, torch.dtype], which: int, tile: Tile) -> Iterator[None]:
    """Inside, that kernel takes this tile."""
    used = tiles.TILES[place]
    row = [tile if i == which else t for i, t in enumerate(used)]
    tiles.TILES[place] = (row[0], row[1], row[2])
    try:
        yield
    finally:
        tiles.TILES[place] = used


def _weights(sort: str) -> Weights:
    d, c = SHAPE[0], 3 if sort == "entry" else SHAPE[0]
    draw = torch.Generator("cuda").manual_seed(0)
    W, Wa = (torch.randn(*s, generator=draw, device="cuda") / c**0.5 for s in ((d, c), (d, d)))
    bias, gamma, beta, ba = (torch.randn(d, generator=draw, device="cuda") for _ in range(4))
    act = "gelu" if sort == "bent" else "none"
    more: Any = (Wa, ba, Wa.to(LOW)) if sort == "scaled" else (None, None, None)
    low = W if sort == "entry" else W.to(LOW)
    return Weights(1e-5, act, act, "sigmoid" if more[0] is not None else "none", LOW, W, bias, gamma, beta, low, *more,
                   entry=sort == "entry")  # fmt: skip


def _inputs(sort: str) -> tuple[Tensor, Tensor | None, Tensor]:
    d, b, l = SHAPE
    y, r, g = (torch.randn(d, b, l, device="cuda").to(LOW) for _ in range(3))
    return (torch.rand(b, l, 3, device="cuda").permute(2, 0, 1), None, g) if sort == "entry" else (y, r, g)


def _products(l: int) -> Iterator[Kernel]:
    """Rows and steps of a tile's products, warps, loads ahead."""
    from resolvent.ops.filter import toeplitz_triton as own

    d, b, _ = SHAPE
    x = torch.randn(d, b, l, device="cuda").to(LOW)
    kernel = torch.nn.functional.pad(torch.randn(d, l, device="cuda"), (0, -l % own.SIZE))
    tables = own.tables(kernel, LOW, own.SIZE)
    used = own.ROWS, own.DEPTH, own.WARPS, own.STAGES
    made = [(128, 64, w, s) for w in (4, 8) for s in (3, 4)] + [(256, 64, w, s) for w in (4, 8) for s in (3, 4)]
    made += [(rows, 128, 8, s) for rows in (128, 256) for s in (2, 3)]

    def run(candidate: tuple[int, int, int, int], back: bool) -> Output:
        own.ROWS, own.DEPTH, own.WARPS, own.STAGES = candidate
        try:
            return [own.product(x, tables[back], back=back)]
        finally:
            own.ROWS, own.DEPTH, own.WARPS, own.STAGES = used

    yield Kernel(f"product of {l}, forward", used, made, lambda c: run(c, False))
    yield Kernel(f"product of {l}, backward", used, made, lambda c: run(c, True))


if __name__ == "__main__":
    raise SystemExit(main())
