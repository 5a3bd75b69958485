"""FAB's step and drawing back: compiled code against torch's operations, any bounds, and what is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from walks import BOUNDS, PACE, SIZES, slopes, walk_of

from helpers import assert_close
from resolvent.attacks import Threat
from resolvent.attacks.fab.walk import Pace, Walk, torch_back, torch_stride

compiled = pytest.importorskip("resolvent.ops.ascent.fab_numba", reason="numba comes with the cpu extra")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_step(norm: str, bounds: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        walk = walk_of(norm, size, bounds, dtype)
        gap, slope = slopes(walk)
        want = torch_stride(walk, gap, slope, PACE)
        assert_close(compiled.stride(walk, gap, slope, PACE), want)
        assert_close(compiled.stride(walk, gap.mT.contiguous().mT, slope.mT.contiguous().mT, PACE), want)
        assert not bool(walk.odd.any())


@pytest.mark.parametrize("stride", [torch_stride, compiled.stride], ids=["torch", "compiled"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_step_without_a_sound_slope_goes_home(norm: str, stride: Any) -> None:
    """With gap and slope 0 nothing pulls: alpha_max of the way to x. Other walkers notice nothing."""
    walk = walk_of(norm, (4, 2, 9))
    gap, slope = slopes(walk)
    clean = stride(walk, gap, slope, PACE)
    gap[0, 1], slope[1, 0, 3], slope[2, 1, 8] = torch.nan, torch.inf, torch.nan
    got = stride(walk, gap, slope, PACE)
    assert walk.odd.tolist() == [True, True, True, False]
    bad = torch.zeros(4, 2, dtype=torch.bool)
    bad[0, 1] = bad[1, 0] = bad[2, 1] = True
    assert torch.equal(got[~bad], clean[~bad])
    assert_close(got[bad], torch.lerp(walk.at, walk.x[:, None], 0.3).clamp(0, 1.5)[bad])


@pytest.mark.parametrize("logit", [torch.float64, torch.float32], ids=["logits64", "logits32"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_drawing_back(norm: str, dtype: torch.dtype, logit: torch.dtype) -> None:
    for size in SIZES:
        logits = torch.randn(*size[:2], 4, generator=torch.Generator().manual_seed(2)).to(logit)
        logits[0, 0, 1] = torch.nan
        logits[-1, -1] = 1.0  # all the same: the first class
        y = torch.arange(size[0] * size[1]).view(size[:2]) % 2
        lines = []
        for back in (torch_back, compiled.back):
            walk = walk_of(norm, size, dtype=dtype)
            at, walker = back(walk, logits, y, PACE)
            lines.append((walker, walk.odd, at, walk.best, walk.distance.nan_to_num(posinf=9.0)))
        for number, (want, got) in enumerate(zip(*lines, strict=True)):
            assert_close(got, want) if number > 1 else torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("back", [torch_back, compiled.back], ids=["torch", "compiled"])
def test_the_nearest_wrong_walker_is_kept_and_only_one_within_eps_is_told(back: Any) -> None:
    x = torch.zeros(3, 2, dtype=torch.float64)
    at = torch.tensor([[[0.3, 0.1], [0.2, -0.1]], [[0.9, 0.0], [0.8, 0.0]], [[0.1, 0.1], [0.1, 0.0]]]).double()
    walk = Walk.start(x, at, Threat("linf", 0.5).check(x), x.clone(), torch.tensor([1.0, 1.0, 0.05]).double())
    logits = torch.tensor([0.0, 1.0]).double().expand(3, 2, 2)  # class 1 everywhere
    moved, walker = back(walk, logits, torch.tensor([[0, 0], [0, 0], [0, 1]]), Pace(beta=0.5))
    assert walker.tolist() == [1, -1, -1]  # within eps, beyond it, not nearer than before
    assert_close(walk.best, torch.stack([at[0, 1], at[1, 1], x[2]]))
    assert_close(walk.distance, torch.tensor([0.2, 0.8, 0.05]).double())
    rate = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 1.0]])[:, :, None]
    assert_close(moved, at * rate)
