"""Steps onto a hyperplane inside a box, against linear programmes, root finding and the sorted reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch import Tensor

from helpers import assert_close
from resolvent.attacks import Threat
from resolvent.attacks.fab import plane
from resolvent.attacks.fab.plane import level, level_sorted, plane_step
from resolvent.attacks.fab.walk import Pace, Walk
from resolvent.runtime.dispatch import push
from resolvent.runtime.graph import watched

NORMS = {"linf": torch.inf, "l2": 2, "l1": 1}
Step = Callable[[str, Tensor, Tensor, Tensor, Tensor], Tensor]


def compiled_step(norm: Any, w: Tensor, gap: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The step of a walker at 0 that neither overshoots nor looks at x: what the compiled code does row by row."""
    code = pytest.importorskip("resolvent.ops.ascent.fab_numba", reason="numba comes with the cpu extra")
    zero, one = torch.zeros_like(w), torch.ones_like(w[:, 0])
    box = -down[:, None], up[:, None]
    walk = Walk(zero, one, zero[:, None], Threat(norm, 1.0), None, *box, zero.clone(), one.clone(), one < 0)
    moved: Tensor = code.stride(walk, gap[:, None], w[:, None], Pace(alpha_max=0.0, eta=1.0))
    assert not bool(walk.odd.any())
    return moved[:, 0]


WAYS = [
    *(pytest.param(norm, plane_step, id=f"{norm}-torch") for norm in NORMS),
    *(pytest.param(norm, compiled_step, id=f"{norm}-compiled") for norm in ("linf", "l2")),
]


def case(seed: int, n: int, b: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(b, n, generator=g, dtype=dtype) ** 3
    w[torch.rand(b, n, generator=g) < 0.2] = 0
    t = torch.rand(b, n, generator=g, dtype=dtype)
    t[torch.rand(b, n, generator=g) < 0.2] = 1  # at the border: no room on one side
    gap = torch.randn(b, generator=g, dtype=dtype) * (w.abs().sum(1) * 0.4 + 1e-3)
    return w, gap, t, 1 - t


def least_norm(norm: str, w: np.ndarray, gap: float, down: np.ndarray, up: np.ndarray) -> float:
    """The optimum by a general solver; infinite when no step reaches the plane."""
    n = len(w)
    if norm == "l2":
        return _least_l2(w, gap, down, up)
    if norm == "l1":  # d = p - q
        sides = [(0, room) for room in (*up, *down)]
        found = linprog(np.ones(2 * n), A_eq=np.r_[w, -w][None], b_eq=[-gap], bounds=sides)
    else:  # |d_i| <= s, minimise s
        eye, one = np.eye(n), np.ones((n, 1))
        box = [*((-a, b) for a, b in zip(down, up, strict=True)), (0, None)]
        below = {"A_ub": np.block([[eye, -one], [-eye, -one]]), "b_ub": np.zeros(2 * n)}
        found = linprog(np.r_[np.zeros(n), 1], A_eq=np.r_[w, 0][None], b_eq=[-gap], bounds=box, **below)
    return float(found.fun) if found.status == 0 else np.inf


def _least_l2(w: np.ndarray, gap: float, down: np.ndarray, up: np.ndarray) -> float:
    """Stationarity: d = clip(-m w) for one multiplier m."""

    def miss(m: float) -> float:
        return float(w @ np.clip(-m * w, -down, up) + gap)

    if miss(-1e9) * miss(1e9) > 0:
        return np.inf
    return float(np.linalg.norm(np.clip(-brentq(miss, -1e9, 1e9, xtol=1e-14, rtol=1e-14, maxiter=500) * w, -down, up)))


@pytest.mark.parametrize(("norm", "step"), WAYS)
@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_shortest_step(norm: str, step: Step, n: int) -> None:
    w, gap, down, up = case(n, n, b=8)
    d = step(norm, w, gap, down, up)
    assert bool((d >= -down).all() and (d <= up).all())
    reached = 0
    for i in range(len(w)):
        want = least_norm(norm, *(v[i].numpy() for v in (w, gap, down, up)))
        if np.isfinite(want):
            reached += 1
            assert_close((w[i] * d[i]).sum(), -gap[i])
            # linprog's own tolerance is 1e-7 and brentq's root is found on a scale of 1e9
            assert_close(torch.linalg.vector_norm(d[i], NORMS[norm]), torch.tensor(want).double(), tolerance=1e-6)
        else:
            assert_close(d[i], _corner(w[i], gap[i], down[i], up[i]))
    assert reached or n == 1


def _corner(w: Tensor, gap: Tensor, down: Tensor, up: Tensor) -> Tensor:
    lower = (w > 0) == (gap > 0)
    return torch.where(w == 0, 0.0, torch.where(lower, -down, up))


@pytest.mark.parametrize(("norm", "step"), WAYS)
def test_without_a_box_it_is_hoelders_inequality(norm: str, step: Step) -> None:
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
    w, gap, *_ = case(3, 40)
    room = torch.full_like(w, torch.inf)
    d = step(norm, w, gap, room, room)
    assert_close((w * d).sum(1), -gap)
    assert_close(torch.linalg.vector_norm(d, NORMS[norm], dim=1), gap.abs() / torch.linalg.vector_norm(w, dual, dim=1))


@pytest.mark.parametrize(("norm", "step"), WAYS)
def test_no_slope_no_step(norm: str, step: Step) -> None:
    room = torch.full((2, 4), torch.inf)
    d = step(norm, torch.zeros(2, 4), torch.tensor([1.0, 0.0]), room, room)
    assert bool((d == 0).all())


@pytest.mark.parametrize(("norm", "step"), WAYS)
def test_tiny_slopes_keep_their_precision(norm: str, step: Step) -> None:
    w, gap, down, up = case(5, 20, dtype=torch.float32)
    d = step(norm, w, gap, down, up)
    tiny = step(norm, w * 1e-25, gap * 1e-25, down, up)
    assert_close(tiny, d, tolerance=1e-4)  # a product of two float32 numbers near 1e-25 loses digits


@given(st.integers(0, 10_000), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_newton_agrees_with_sorting(seed: int, n: int) -> None:
    w, gap, room, _ = case(seed, n)
    weight = w.abs()
    room = torch.where(weight > 0, room, 0.0)
    args = (weight, room, weight * room, gap.abs()[:, None])
    assert_close(torch.minimum(level(*args), room), torch.minimum(level_sorted(*args), room))


def test_many_kinks_fall_back_to_sorting() -> None:
    """Weights and kinks in geometric order make Newton stop at each one."""
    k = torch.arange(60, dtype=torch.float64)
    full, weight = (4.0**k)[None], (16.0**-k)[None]
    gap = (weight * full).sum(1, keepdim=True) * (1 - 1e-13)
    got = level(weight, full, weight * full, gap)
    other = level(weight.flip(1), full.flip(1), (weight * full).flip(1), gap)
    assert_close((weight * torch.minimum(got, full)).sum(1), gap[:, 0])
    assert_close(got, other, tolerance=1e-3)  # the gap's last digits decide among kinks: the order of summation shows


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_compiled_newton_meets_every_kink(norm: str) -> None:
    """The same without the way out: rooms in geometric order, so that it stops at one after the other."""
    k = torch.arange(28, dtype=torch.float64)
    w, room = (2.0**-k)[None], (2.0**k)[None] * (1 + k / 28)
    gap = (w * room).sum(1) * (1 - 1e-9)
    d = compiled_step(norm, w, gap, room, room)
    assert_close((w * d).sum(1), -gap)
    assert_close(d, plane_step(norm, w, gap, room, room))


@pytest.mark.parametrize(("norm", "step"), WAYS)
def test_a_row_does_not_feel_its_neighbours(norm: str, step: Step) -> None:
    w, gap, down, up = case(11, 50, b=6, dtype=torch.float32)
    whole = step(norm, w, gap, down, up)
    alone = torch.cat([step(norm, *(v[i : i + 1] for v in (w, gap, down, up))) for i in range(6)])
    assert torch.equal(whole, alone)


@pytest.mark.parametrize("rounds", [1, 2, 24])
def test_a_level_that_waits_for_no_number(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a recording is made, rows that have found their level stand still, and the others are sorted."""
    monkeypatch.setattr(plane, "_ROUNDS", rounds)
    g = torch.Generator().manual_seed(0)
    weight, full = torch.rand(6, 40, generator=g).double(), torch.rand(2, 6, 40, generator=g).double() ** 4
    gap = torch.linspace(0.0, 3.0, 12).double().view(2, 6, 1)
    want = level(weight, full, weight * full, gap)
    with push(watched.recording, True):
        found = level(weight, full, weight * full, gap)
    assert_close(found, want)
    closed = (weight * torch.minimum(found, full)).sum(-1, keepdim=True)
    assert_close(torch.where(found < torch.inf, closed, gap), gap)


def test_the_level_of_several_boxes_is_sorted_where_rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "_ROUNDS", 1)
    full = torch.linspace(0.01, 1.0, 50).double().expand(3, 50)
    weight = torch.linspace(1.0, 2.0, 50).double().expand(3, 50)
    gap = torch.tensor([[5.0], [20.0], [30.0]]).double()
    with push(watched.recording, True):
        assert_close(level(weight, full, weight * full, gap), level_sorted(weight, full, weight * full, gap))
