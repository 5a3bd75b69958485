"""Time steps: the range drawn, the exact end points, and values that stay finite for any parameter."""

from __future__ import annotations

import math

import pytest
import torch

from resolvent.init.timestep import log_uniform, positive


def test_log_uniform_is_uniform_in_the_logarithm() -> None:
    draws = log_uniform((100_000,), 1e-3, 1e-1, generator=torch.Generator().manual_seed(0))
    assert draws.min() >= math.log(1e-3)
    assert draws.max() <= math.log(1e-1)
    mean, spread = (math.log(1e-3) + math.log(1e-1)) / 2, math.log(100.0) / math.sqrt(12)
    assert abs(float(draws.mean()) - mean) < 5 * spread / math.sqrt(100_000)
    assert abs(float(draws.std()) - spread) < 0.02 * spread


def test_log_uniform_repeats_with_its_generator() -> None:
    one, two = (log_uniform((8,), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("extreme", [-1e4, 1e4])
def test_positive_never_leaves_the_open_half_line(extreme: float) -> None:
    dt = positive(torch.tensor(extreme))
    assert 0 < dt < torch.inf


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 0.5), (-1.0, 1.0), (1e-3, math.inf)])
def test_bad_ranges_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="dt_min"):
        log_uniform((1,), low, high)
