"""Tiles of fused blocks against what chips hold."""

from __future__ import annotations

import pytest
import torch

from resolvent.lowering.gpu import tiles
from resolvent.runtime.chip import SHARED

LIMITS = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}  # KiB that a program may hold, by NVIDIA's tables
LOW, FINE = torch.bfloat16, torch.float32


@pytest.mark.parametrize("chip", LIMITS)
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("sort", ["plain", "bent", "scaled"])
def test_a_tile_fits_its_chip(chip: int, which: int, sort: str) -> None:
    assert SHARED[chip] == LIMITS[chip]
    for dtype in (LOW, FINE):
        for d in (16, 32, 64, 128):
            found = tiles.choose_tile(sort, dtype, which, (d, d), SHARED[chip])
            if chip == 90:
                assert found == tiles.TILES[sort, dtype][which]  # as it was tuned
            elif found is not None:
                assert tiles.estimate(sort, dtype, which, (d, d), found) <= LIMITS[chip] << 10
                assert found.columns >= 16
                assert found.resident == 1


@pytest.mark.parametrize("chip", LIMITS)
def test_who_has_room(chip: int) -> None:
    """bf16 blocks of 128 channels run everywhere; matrices of float32, held twice, need 128 KiB for themselves."""
    assert all(tiles.has_room(sort, LOW, (128, 128), SHARED[chip]) for sort in ("plain", "bent"))
    assert tiles.has_room("scaled", LOW, (128, 128), SHARED[chip]) == (chip in (80, 90))  # four matrices back
    assert tiles.has_room("plain", FINE, (128, 128), SHARED[chip]) == (chip in (80, 90))
    assert tiles.has_room("plain", FINE, (64, 64), SHARED[chip])


@pytest.mark.parametrize(  # what Triton 3.6 reports for 128 channels on sm_86 (benchmarks/gpu/targets)
    ("sort", "dtype", "which", "tile", "KiB"),
    [
        ("plain", LOW, 0, tiles.Tile(64, 4, 2, 1), 80),
        ("plain", LOW, 2, tiles.Tile(64, 4, 3, 1), 112),
        ("bent", LOW, 0, tiles.Tile(32, 4, 2, 1), 52),
        ("bent", LOW, 1, tiles.Tile(64, 4, 3, 1), 132),
        ("scaled", LOW, 0, tiles.Tile(64, 8, 3, 1), 144),
        ("scaled", LOW, 1, tiles.Tile(64, 8, 3, 1), 208),
        ("scaled", LOW, 1, tiles.Tile(16, 8, 1, 1), 128),
        ("plain", FINE, 0, tiles.Tile(32, 8, 3, 1), 208),
        ("plain", FINE, 1, tiles.Tile(32, 8, 3, 1), 224),
        ("bent", FINE, 1, tiles.Tile(32, 8, 2, 1), 208),
    ],
)
def test_estimates_are_from_above(sort: str, dtype: torch.dtype, which: int, tile: tiles.Tile, KiB: int) -> None:
    assert tiles.estimate(sort, dtype, which, (128, 128), tile) >= KiB << 10
