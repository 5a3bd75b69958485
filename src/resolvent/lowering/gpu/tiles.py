"""The tile of a program of `fused_triton`, by the chip's shared memory.

Tiles were tuned (`benchmarks/gpu/tiles.py`) where a program may use 227 KiB. With less memory the same kernels run
with fewer columns at a time and fewer pipeline stages: the first tile of `ladder` whose `estimate` fits. Estimates are
upper bounds fitted to the compiler's own reports (`benchmarks/gpu/targets`, which compiles every choice for every
chip).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

ROOMY = 227  # KiB


class Tile(NamedTuple):
    """How a program works: columns at a time, warps, pipeline stages, programs per multiprocessor."""

    columns: int
    warps: int
    ahead: int
    resident: int


LOW, FINE = torch.bfloat16, torch.float32
TILES = {  # forward, backward, and backward with sums for parameters; with more live values, fewer columns
    ("plain", LOW): (Tile(64, 4, 3, 2), Tile(64, 4, 3, 2), Tile(64, 4, 3, 2)),
    ("bent", LOW): (Tile(32, 4, 3, 3), Tile(64, 4, 3, 1), Tile(64, 8, 3, 1)),
    ("scaled", LOW): (Tile(64, 8, 3, 1),) * 3,
    ("entry", FINE): (Tile(32, 4, 3, 2), Tile(64, 4, 3, 2), Tile(32, 4, 3, 2)),
    ("plain", FINE): (Tile(32, 8, 3, 1),) * 3,
    ("bent", FINE): (Tile(32, 8, 3, 1), Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)),
    ("scaled", FINE): (Tile(32, 8, 3, 1),) * 3,
}
PASSES = 3  # entries of a row above
HELD = {"plain": (1.0, 1.25), "entry": (1.0, 1.25), "bent": (1.1, 1.75), "scaled": (1.25, 1.25)}  # tiles: forward, back


def choose_tile(sort: str, dtype: torch.dtype, which: int, sizes: tuple[int, int], held: int) -> Tile | None:
    """The tile for blocks of that sort and matrix dtype, padded to `sizes` channels (d, c), with `held` KiB per
    program; which: 0 forward, 1 backward, 2 with sums. None: nothing fits."""
    tuned = TILES[sort, dtype][which]
    if held >= ROOMY:
        return tuned
    return next((t for t in ladder(tuned) if estimate(sort, dtype, which, sizes, t) <= held << 10), None)


def ladder(tuned: Tile) -> Iterator[Tile]:
    """From the tuned tile to the smallest; with only one program per multiprocessor."""
    for columns in (tuned.columns, tuned.columns // 2, tuned.columns // 4):
        for ahead in range(tuned.ahead, 0, -1):
            if columns >= 16:
                yield Tile(columns, tuned.warps, ahead, 1)


def estimate(sort: str, dtype: torch.dtype, which: int, sizes: tuple[int, int], tile: Tile) -> int:
    """An upper bound of bytes on chip: the matrices (float32 ones twice, coarse and rest) and the tiles in flight."""
    d, c = sizes
    fine = dtype == FINE
    count = 1 if sort != "scaled" else 4 if which else 2  # the backward of adaptive scaling needs both transposed, too
    matrices = d * c * (8 if fine else 2) * count
    one = tile.columns * max(d, c) * (4 if fine else 2)
    return int(matrices + one * (2 * tile.ahead - 1) * HELD[sort][which > 0])


def has_room(sort: str, dtype: torch.dtype, sizes: tuple[int, int], held: int) -> bool:
    return all(choose_tile(sort, dtype, which, sizes, held) is not None for which in range(PASSES))
