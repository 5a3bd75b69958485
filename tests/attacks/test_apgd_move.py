"""APGD's compiled move against torch's operations and a general solver; never outside, the same in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from helpers import assert_close
from resolvent.attacks import Threat
from resolvent.attacks.apgd.move import move, torch_move

compiled = pytest.importorskip("resolvent.ops.ascent.apgd_numba", reason="numba comes with the cpu extra")
SHAPES = [(7, 3, 11), (1, 1), (4, 225), (3, 5, 5, 2)]
EPS = {"linf": 0.07, "l2": 0.4}


def case(
    norm: Any, shape: tuple[int, ...], bounds: Any = (0.0, 1.0), dtype: Any = torch.float64, seed: int = 0
) -> tuple[Any, ...]:
    """Threat, region, two points of it, a gradient and a step for each sample."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=g, dtype=dtype).clamp(0.02, 1)
    if bounds == "feature":
        bounds = (x.amin(0) - 0.01, x.amax(0) + 0.3)
    threat = Threat(norm, EPS[norm] * (1 + torch.arange(len(x)) / 3).to(dtype), bounds).check(x)
    region = threat.around(x)
    near, old = (region.project(x + 0.3 * torch.randn(shape, generator=g, dtype=dtype)) for _ in range(2))
    grad = torch.randn(shape, generator=g, dtype=dtype) ** 3
    grad[torch.rand(shape, generator=g) < 0.2] = 0
    return threat, region, near, old, grad, 2 * threat.radius(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("bounds", [None, (0.0, 1.0), "feature"], ids=["free", "scalar", "feature"])
@pytest.mark.parametrize("norm", EPS)
def test_the_move_is_torchs(norm: str, bounds: Any, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        args = case(norm, shape, bounds, dtype)
        for momentum in (1.0, 0.75):
            # L2 with bounds: both searches end at a rise of 2e-6 of the squared factor, each at its own
            loose = 2e-6 if norm == "l2" and bounds is not None else None
            assert_close(compiled.move(*args, momentum), torch_move(*args, momentum), tolerance=loose)


@pytest.mark.parametrize("n", [2, 6])
def test_l2_by_a_general_solver(n: int) -> None:
    """Without momentum: the point of ball and box nearest to x + step * grad / ||grad||."""
    threat, region, near, old, grad, step = case("l2", (5, n), seed=n)
    got = compiled.move(threat, region, near, old, grad, step, 1.0)
    goal = near + step * grad / grad.norm(dim=1, keepdim=True)
    for i in range(5):
        x, eps, to = region.x[i].numpy(), float(region.eps[i]), goal[i].numpy()
        inside = {"type": "ineq", "fun": lambda z, x=x, eps=eps: eps**2 - np.square(z - x).sum()}
        found = minimize(
            lambda z, to=to: np.square(z - to).sum(), x, bounds=[(0, 1)] * n, constraints=[inside], method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 300},
        )  # fmt: skip
        assert_close(got[i], torch.from_numpy(found.x), tolerance=2e-5)  # half the digits of the solver's objective


@given(st.sampled_from(list(EPS)), st.integers(1, 40), st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_never_outside_and_the_same_alone(norm: str, n: int, seed: int, bounded: bool) -> None:
    args = case(norm, (4, n), (0.0, 1.0) if bounded else None, torch.float32, seed)
    threat, region = args[:2]
    moved = compiled.move(*args, 0.75)
    assert bool(threat.contains(moved, region.x, 1e-6).all())
    one = torch.tensor([2])
    alone = compiled.move(threat.select(one), region.select(one), *(v[one] for v in args[2:]), 0.75)
    assert torch.equal(alone, moved[one])


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-20, 1e20, 1e30])
@pytest.mark.parametrize("norm", EPS)
def test_gradients_of_any_size(norm: str, scale: float) -> None:
    threat, region, near, old, grad, step = case(norm, (4, 30), dtype=torch.float32)
    args = threat, region, near, old, grad * scale, step, 0.75
    got = compiled.move(*args)
    assert bool(torch.isfinite(got).all())
    assert_close(got, torch_move(*args), tolerance=1e-5)


def test_roundings_never_leave_the_ball() -> None:
    """Around large values x + delta is coarse: every entry rounds, and thousands of them add up."""
    x = 1000 + torch.rand(3, 4000, generator=torch.Generator().manual_seed(0))
    threat = Threat("l2", 0.5).check(x)
    region, grad = threat.around(x), torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    for step in (0.5, 2.0):
        args = threat, region, x, x, grad, torch.full((3, 1), step), 1.0
        got = compiled.move(*args)
        assert bool(((got - x).double().norm(dim=1) <= 0.5 + 5e-7).all())
        assert bool((got != x).any())
        assert float((got - torch_move(*args)).abs().max()) < 1.3e-4  # two neighbours of float32 at 1000


def test_a_mask_goes_the_slow_way() -> None:
    x: Tensor = torch.rand(2, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[3], [5]])
    threat = Threat("linf", 0.1, (0.0, 1.0), mask).check(x)
    moved = move(threat, threat.around(x), x, x, torch.ones_like(x), torch.full((2, 1), 0.2), 1.0)
    assert torch.equal(moved[~mask], x[~mask])
    assert bool((moved != x)[mask].all())
