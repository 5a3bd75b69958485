"""FAB's step as a Triton kernel, in the interpreter, against torch's operations in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
import triton_interpreter  # noqa: F401
from walks import BOUNDS, PACE, SIZES, slopes, walk_of

from helpers import assert_close
from resolvent.attacks.fab.walk import Walk, torch_stride
from resolvent.ops.ascent import fab_triton


def wide(walk: Walk) -> Walk:
    parts = {name: getattr(walk, name).double() for name in ("x", "eps", "at", "low", "high", "best", "distance")}
    return replace(walk, **parts)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_kernel_takes_the_same_step(norm: str, bounds: str) -> None:
    for size in SIZES:
        walk = walk_of(norm, size, bounds, torch.float32)
        gap, slope = slopes(walk)
        want = torch_stride(wide(walk), gap.double(), slope.double(), PACE)
        found: Any = fab_triton._stride(walk, gap, slope, PACE)
        assert_close(found, want.float(), dtype=torch.float32)
        assert not bool(walk.odd.any())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_no_slope_a_far_plane_and_what_is_not_finite(norm: str) -> None:
    walk = walk_of(norm, (5, 2, 9), dtype=torch.float32)
    gap, slope = slopes(walk)
    slope[0, 0], gap[1, 1], slope[4, 1, ::2] = 0.0, 1e6, 0.0  # nothing pulls; the corner of the box; some pull
    slope[2, 1, 8], gap[3, 0] = torch.nan, torch.inf
    other = wide(walk)
    want = torch_stride(other, gap.double(), slope.double(), PACE)
    found: Any = fab_triton._stride(walk, gap, slope, PACE)
    assert_close(found, want.float(), dtype=torch.float32)
    assert walk.odd.tolist() == other.odd.tolist() == [False, False, True, True, False]


def test_long_rows_are_left_to_torch() -> None:
    walk = walk_of("linf", (1, 1, fab_triton.MOST + 1), dtype=torch.float32)
    assert fab_triton.stride(walk, *slopes(walk), PACE) is None
