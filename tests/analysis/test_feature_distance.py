"""Both distances against numbers worked out by hand and against loops over plain Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.analysis import feature_kl, feature_mse
from resolvent.analysis.attribution.feature_distance import rounding


def features(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    f = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return f, f + 0.3 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_two_steps_by_hand() -> None:
    """One channel, f = (0, ln 3) against f' = (0, 0): S(f) = (1/4, 3/4), S(f') = (1/2, 1/2)."""
    f = torch.tensor([[[0.0], [math.log(3)]]], dtype=torch.float64)
    f_adv = torch.zeros_like(f)
    assert_close(feature_mse(f, f_adv), torch.tensor([math.log(3) ** 2 / 2], dtype=torch.float64))
    forward = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert_close(feature_kl(f, f_adv), torch.tensor([forward], dtype=torch.float64))
    backward = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert_close(feature_kl(f_adv, f), torch.tensor([backward], dtype=torch.float64))
    assert abs(forward - backward) > 1e-3  # so the direction is told apart


def loop_mse(f: list[list[float]], g: list[list[float]]) -> float:
    return sum((b - a) ** 2 for row, other in zip(f, g, strict=True) for a, b in zip(row, other, strict=True)) / len(f)


def loop_kl(f: list[list[float]], g: list[list[float]]) -> float:
    total = 0.0
    for a, b in zip(zip(*f, strict=True), zip(*g, strict=True), strict=True):  # channel by channel
        za, zb = sum(map(math.exp, a)), sum(map(math.exp, b))
        total += sum(
            math.exp(u) / za * math.log(math.exp(u) / za * zb / math.exp(v)) for u, v in zip(a, b, strict=True)
        )
    return total / len(f[0])


@pytest.mark.parametrize(("b", "l", "d"), [(1, 1, 1), (3, 7, 2), (2, 16, 5)])
def test_against_loops_with_lengths(b: int, l: int, d: int) -> None:
    f, g = features(b, l, d)
    lengths = torch.arange(b).remainder(l) + 1
    cut = [(f[i, :t].tolist(), g[i, :t].tolist()) for i, t in enumerate(lengths.tolist())]
    assert_close(feature_mse(f, g, lengths), torch.tensor([loop_mse(*c) for c in cut], dtype=torch.float64))
    want = torch.tensor([loop_kl(*c) for c in cut], dtype=torch.float64)
    assert float((feature_kl(f, g, lengths) - want).abs().max()) < 1e-14


def test_padding_is_ignored_whatever_it_holds() -> None:
    f, g = features(3, 9, 4)
    lengths = torch.tensor([9, 1, 5])
    want = feature_mse(f, g, lengths), feature_kl(f, g, lengths)
    for filling in (math.nan, math.inf, 1e300):
        for i, t in enumerate(lengths.tolist()):
            f[i, t:], g[i, t:] = filling, -filling
        assert torch.equal(feature_mse(f, g, lengths), want[0])
        assert torch.equal(feature_kl(f, g, lengths), want[1])


def test_identical_features_are_at_zero() -> None:
    f, _ = features(2, 6, 3)
    assert feature_mse(f, f).tolist() == [0, 0]
    assert feature_kl(f, f.clone()).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_constant_shift_moves_mse_alone(dtype: torch.dtype) -> None:
    """Softmax over time does not see a shift of a channel; in float64 s^2 summed over channels is the MSE."""
    f = features(2, 33, 3)[0].to(dtype)
    shifted = f + torch.tensor([0.5, -2.0, 3.0]).to(dtype)
    mse, kl = feature_mse(f, shifted), feature_kl(f, shifted)
    floor_mse, floor_kl = rounding(f, shifted)
    assert_close(mse, torch.full_like(mse, 13.25), tolerance={torch.float64: 1e-10}.get(dtype, 2e-2))
    assert bool((kl <= floor_kl).all())
    assert bool((mse > 1e2 * floor_mse).all())


def test_rounding_is_far_below_a_real_difference() -> None:
    f, g = (v.float() for v in features(2, 33, 3))
    floor_mse, floor_kl = rounding(f, g)
    assert bool((feature_mse(f, g) > 1e8 * floor_mse).all())
    assert bool((feature_kl(f, g) > 1e8 * floor_kl).all())


def test_huge_features_stay_finite() -> None:
    """All weight on one step against all weight on another: KL is the gap between them, 2e4."""
    f = torch.tensor([[[1e4], [-1e4]]])
    assert_close(feature_kl(f, -f), torch.tensor([2e4], dtype=torch.float64))


@pytest.mark.parametrize("distance", [feature_mse, feature_kl])
def test_refusals(distance: Callable[..., Tensor]) -> None:
    f = torch.zeros(2, 4, 3)
    for other in (torch.zeros(2, 4, 2), torch.zeros(2, 4)):
        with pytest.raises(ValueError, match="one shape"):
            distance(f, other)
    with pytest.raises(ValueError, match="none of them zero"):
        distance(f[:, :0], f[:, :0])
    with pytest.raises(TypeError, match="real features"):
        distance(f.to(torch.complex64), f.to(torch.complex64))
    for lengths in (torch.tensor([4]), torch.tensor([0, 4]), torch.tensor([4, 5])):
        with pytest.raises(ValueError, match=r"within 1\.\.4"):
            distance(f, f, lengths)
