"""The threat: every point obeys ball, bounds and mask; projections are nearest points; directions are steepest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_close
from resolvent.attacks import Draws, Threat
from resolvent.attacks.autoattack.curve import ascending

NORMS = ("linf", "l2", "l1")
QUICK = settings(max_examples=40, deadline=None)


@st.composite
def situations(draw: Any) -> tuple[Tensor, Threat, torch.Generator]:
    """x of any rank, a threat with any norm, radius (zero, tiny, huge, per sample), bounds and mask."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    x = torch.rand(shape, generator=generator, dtype=draw(st.sampled_from([torch.float32, torch.float64])))
    eps: Any = draw(st.sampled_from([0.0, 1e-4, 0.1, 0.7, 3.0]))
    if draw(st.booleans()):
        eps = eps * torch.rand(shape[0], generator=generator)
    low, high = torch.zeros(shape[-1]), torch.ones(shape[-1]) + torch.rand(shape[-1], generator=generator)
    tight = (x - 0.1 * torch.rand(shape, generator=generator), x.clone())  # no room above: the box touches x
    bounds: Any = draw(st.sampled_from([None, (0.0, 1.0), (low, high), tight, (-torch.inf, 1.0)]))
    mask = torch.rand(shape[: draw(st.integers(1, len(shape)))], generator=generator) < 0.6
    threat = Threat(draw(st.sampled_from(NORMS)), eps, bounds, mask if draw(st.booleans()) else None)
    return x, threat, generator


@given(situations(), st.booleans())
@QUICK
def test_points_obey_ball_bounds_and_mask(situation: tuple[Tensor, Threat, torch.Generator], surface: bool) -> None:
    x, threat, generator = situation
    fitted = threat.check(x)
    far = x + 5 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    for point in (fitted.project(far, x), fitted.random_start(x, Draws.of(x), surface=surface)):
        assert_obeys(point, x, threat)
        assert fitted.contains(point, x).all()


def assert_obeys(point: Tensor, x: Tensor, threat: Threat) -> None:
    """Written out with numpy, without the threat's own methods."""
    assert torch.isfinite(point).all()
    delta = (point - x).double().flatten(1).numpy()
    size = np.linalg.norm(delta, {"linf": np.inf, "l2": 2, "l1": 1}[threat.norm], axis=1) if delta.size else np.zeros(0)
    assert (size <= np.asarray(torch.as_tensor(threat.eps).double().numpy()) + 1e-6).all()
    if threat.bounds is not None:
        low, high = (torch.as_tensor(v, dtype=x.dtype) for v in threat.bounds)
        assert (point >= low - 1e-6).all()
        assert (point <= high + 1e-6).all()
    if threat.mask is not None:
        mask = threat.mask.reshape(*threat.mask.shape, *[1] * (x.dim() - threat.mask.dim())).expand(x.shape)
        assert torch.equal(point[~mask], x[~mask])


@given(situations())
@QUICK
def test_projection_is_the_nearest_point(situation: tuple[Tensor, Threat, torch.Generator]) -> None:
    """<p - P(p), w - P(p)> <= 0 for every feasible w: the property that defines the nearest point of a convex set."""
    x, threat, generator = situation
    x = x.double()
    threat = threat.check(x)
    p = x + torch.randn(x.shape, generator=generator, dtype=x.dtype)
    nearest = threat.project(p, x)
    assert_close(threat.project(nearest, x), nearest, tolerance=1e-6)  # the L2 search ends at 1e-6 of the radius
    for k in range(20):
        w = threat.project(x + torch.randn(x.shape, generator=generator, dtype=x.dtype) * 10.0 ** (k % 4 - 2), x)
        angle = (threat.masked(p - nearest) * (w - nearest)).flatten(1).sum(1)
        assert (angle <= 1e-5).all()  # of order eps: float64 rounding plus the L2 search's 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
def test_starts_of_many_are_those_of_each(norm: Any, dtype: torch.dtype) -> None:
    """Bit for bit, in batches that a processor takes several numbers at a time of and has some left over."""
    x = torch.rand(331, 3, 3, dtype=dtype)
    threat, draws = Threat(norm, 0.7), Draws.of(x)
    whole = threat.random_start(x, draws)
    for i in range(len(x)):
        assert torch.equal(whole[[i]], threat.random_start(x[[i]], draws.select(torch.tensor([i]))))


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_projection_against_scipy(norm: str) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    for _ in range(5):
        n, eps = 6, 0.8
        low, high = -rng.random(n) * 0.5, rng.random(n) * 0.5
        p = rng.normal(size=n)

        # Split into positive and negative parts, so that the L1 norm is smooth.
        def size(v: np.ndarray, n: int = n) -> float:
            return (v**2).sum() if norm == "l2" else v.sum()

        sign = np.sign(p)
        cap = np.where(p > 0, high, -low)
        found = optimize.minimize(
            lambda v, p=p: ((v - np.abs(p)) ** 2).sum(),
            np.zeros(n),
            jac=lambda v, p=p: 2 * (v - np.abs(p)),
            bounds=[(0.0, c) for c in cap],
            constraints={"type": "ineq", "fun": lambda v, eps=eps: (eps**2 if norm == "l2" else eps) - size(v)},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        x = torch.zeros(1, n, dtype=torch.float64)
        threat = Threat(norm, eps, (torch.tensor(low), torch.tensor(high)))  # type: ignore[arg-type]
        mine = threat.check(x).project(torch.tensor(p)[None], x)[0].numpy()
        np.testing.assert_allclose(mine, sign * found.x, atol=2e-5)  # what SLSQP reaches


def test_l1_projection_without_box_is_the_simplex_projection() -> None:
    p = torch.tensor([[3.0, -1.0, 0.5, 0.0]], dtype=torch.float64)
    x = torch.zeros_like(p)
    assert_close(Threat("l1", 2.0).project(p, x), torch.tensor([[2.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert_close(Threat("l1", 3.0).project(p, x), torch.tensor([[2.5, -0.5, 0.0, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("norm", NORMS)
def test_steepest_has_unit_norm_and_grows_most(norm: Any) -> None:
    g = torch.randn(7, 5, 2, dtype=torch.float64)
    threat = Threat(norm, 1.0)
    direction = threat.steepest(g, 1e-9)  # L1: the single largest entry, the exact dual direction
    assert_close(threat.norm_of(direction), torch.ones(7, dtype=torch.float64))
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
    assert_close((g * direction).flatten(1).sum(1), torch.linalg.vector_norm(g.flatten(1), dual, dim=1))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e30])
def test_steepest_of_extreme_gradients(norm: Any, scale: float) -> None:
    g = torch.randn(3, 4) * scale
    direction = Threat(norm, 1.0).steepest(g)
    assert torch.isfinite(direction).all()
    want = torch.ones(3) if scale else torch.zeros(3)
    assert_close(Threat(norm, 1.0).norm_of(direction), want)


def test_sparse_direction_counts_entries_per_sample() -> None:
    g = torch.randn(3, 100)
    direction = Threat("l1", 1.0).steepest(g, torch.tensor([0.01, 0.2, 1.0]))
    assert (direction != 0).sum(1).tolist() == [1, 20, 100]


@pytest.mark.parametrize("norm", NORMS)
def test_surface_starts_have_the_whole_radius(norm: Any) -> None:
    x = torch.zeros(20, 30)
    threat = Threat(norm, 0.5).check(x)
    assert_close(threat.norm_of(threat.random_start(x, Draws.of(x), surface=True)), torch.full((20,), 0.5))


def test_uniform_starts_fill_the_ball() -> None:
    """P(norm <= r) = r^n in the unit ball of n entries."""
    x = torch.zeros(4000, 2)
    for norm in NORMS[1:]:
        size = Threat(norm, 1.0).norm_of(Threat(norm, 1.0).random_start(x, Draws.of(x)))
        assert abs(float((size < 0.5).float().mean()) - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


@given(situations(), st.integers(1, 6))
@QUICK
def test_a_batch_is_its_samples_one_by_one(situation: tuple[Tensor, Threat, torch.Generator], times: int) -> None:
    """Bit for bit: projections, directions and starts of a sample do not feel its neighbours, nor its place."""
    x, threat, generator = situation
    x = x.repeat(times, *[1] * (x.dim() - 1))
    eps = threat.eps.repeat(times) if isinstance(threat.eps, Tensor) else threat.eps
    bounds = threat.bounds
    if bounds is not None and isinstance(bounds[0], Tensor) and bounds[0].dim() == x.dim():
        bounds = (bounds[0].repeat(times, *[1] * (x.dim() - 1)), x.clone())
    mask = None if threat.mask is None else threat.mask.repeat(times, *[1] * (threat.mask.dim() - 1))
    fitted = Threat(threat.norm, eps, bounds, mask).check(x)
    scale = 10 ** (4 * torch.rand(len(x), generator=generator) - 3).view(-1, *[1] * (x.dim() - 1))
    far = x + (scale * torch.randn(x.shape, generator=generator)).to(x.dtype)
    region, draws = fitted.around(x), Draws.of(x)
    whole = (region.project(far), fitted.steepest(far - x), fitted.random_start(x, draws))
    for i in range(len(x)):
        one = torch.tensor([i])
        alone = fitted.select(one)
        mine, start = x[one], alone.random_start(x[one], draws.select(one))
        for together, part in zip(
            whole, (alone.project(far[one], mine), alone.steepest(far[one] - mine), start), strict=True
        ):
            assert torch.equal(together[one], part)
        assert torch.equal(region.select(one).project(far[one]), whole[0][one])


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize(("n", "eps"), [(3072, 12.0), (3072, 0.5), (16384, 40.0), (200, 1e-3)])
def test_many_small_roundings_stay_within_the_radius(norm: Any, n: int, eps: float) -> None:
    """x + delta is rounded in every entry: the sum of the roundings must not pass 1e-6, in float32 and at any size."""
    x = torch.rand(6, n, generator=torch.Generator().manual_seed(n))
    far = x + torch.randn(6, n, generator=torch.Generator().manual_seed(1))
    for bounds in (None, (0.0, 1.0)):
        threat = Threat(norm, eps, bounds)
        point = threat.project(far, x)
        size = np.linalg.norm((point.double() - x.double()).numpy(), {"l2": 2, "l1": 1}[norm], axis=1)
        assert (size <= eps + 1e-6).all()
        assert (size >= eps * (1 - 1e-5) - 1e-6).all()


@pytest.mark.parametrize("norm", NORMS)
def test_subsets_see_the_same_threat(norm: Any) -> None:
    x = torch.rand(6, 5, 2)
    threat = Threat(norm, torch.rand(6), (x - 0.2, x + 0.1)).with_lengths(torch.tensor([5, 1, 2, 3, 4, 5]), 5).check(x)
    far = x + torch.randn_like(x)
    whole = threat.project(far, x)
    for index in (torch.tensor([4, 0, 0, 2]), torch.tensor([True, False, True, True, False, False])):
        assert_close(threat.select(index).project(far[index], x[index]), whole[index])
    one = threat.select(torch.tensor([3]))
    assert_close(one.select(torch.tensor([0, 0])).project(far[[3, 3]], x[[3, 3]]), whole[[3, 3]])


def test_lengths_and_mask_combine() -> None:
    mask = torch.ones(2, 4, 3, dtype=torch.bool)
    mask[..., 0] = False
    threat = Threat("linf", 1.0, mask=mask).with_lengths(torch.tensor([4, 2]), 4)
    moved = threat.project(torch.full((2, 4, 3), 9.0), torch.zeros(2, 4, 3))
    assert moved.sum().item() == 4 * 2 + 2 * 2


def test_lengths_and_a_mask_of_whole_samples_combine() -> None:
    """As many samples as steps: the mask must not be taken for one of steps."""
    mask, lengths = torch.tensor([True, False, True]), torch.tensor([3, 3, 1])
    threat = Threat("linf", 1.0, mask=mask).with_lengths(lengths, 3).check(torch.zeros(3, 3, 2))
    moved = threat.project(torch.full((3, 3, 2), 9.0), torch.zeros(3, 3, 2))
    assert moved[..., 0].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]


def test_contains_notices_each_violation() -> None:
    x = torch.full((4, 3), 0.5)
    threat = Threat("l2", 0.1, (0.45, 0.6), torch.tensor([True, True, True, False])).check(x)
    x_adv = x.clone()
    x_adv[0, 0] += 0.1 + 1e-4  # outside the ball
    x_adv[1, 0] -= 0.06  # outside the bounds
    x_adv[2, 0] += 0.09  # fine
    x_adv[3, 0] += 1e-7  # masked
    assert threat.contains(x_adv, x).tolist() == [False, False, True, False]
    assert not threat.contains(x + torch.nan, x).any()


X = torch.rand(2, 3)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Threat("linf", -0.1), ValueError, "not negative"),
        (lambda: Threat("linf", float("nan")), ValueError, "finite"),
        (lambda: Threat("linf", "8/255"), TypeError, "'8/255'"),
        (lambda: Threat("linf", True), TypeError, "number"),
        (lambda: Threat("l0", 1.0), ValueError, "'l0'"),
        (lambda: Threat("l2", torch.ones(2, 9)).check(X), ValueError, "broadcast"),
        (lambda: Threat("l2", 1.0, 3.0), TypeError, "pair"),
        (lambda: Threat("l2", 1.0, (1.0, 0.0)), ValueError, "above"),
        (lambda: Threat("l2", 1.0, ("0", 1.0)), TypeError, "low"),
        (lambda: Threat("l2", 1.0, (0.0, float("nan"))), ValueError, "NaN"),
        (lambda: Threat("l2", 1.0, mask=torch.ones(2)), TypeError, "bool"),
        (lambda: Threat("l2", torch.ones(3)).check(X), ValueError, "one entry per sample"),
        (lambda: Threat("l2", 1.0, (2.0, 3.0)).check(X), ValueError, "exclude the input"),
        (lambda: Threat("l2", 1.0, (torch.zeros(2), 1.0)).check(X), ValueError, "broadcast"),
        (lambda: Threat("l2", 1.0, mask=torch.ones(3, dtype=torch.bool)).check(X), ValueError, "leading axes"),
        (lambda: Threat("l2", 1.0).check(X * torch.nan), ValueError, "NaN"),
        (lambda: Threat("l2", 1.0).check(X.long()), TypeError, "embedding"),
        (lambda: Threat("l2", 1.0).check(X[0]), ValueError, "batch"),
        (lambda: Threat("l2", 1.0).check(X[:0]), ValueError, "at least one sample"),
        (lambda: Threat("l2", 1.0, (X - 1, X + 1)).select(torch.tensor([0])), ValueError, "check"),
    ],
)
def test_bad_input(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_threat_is_fitted_once_for_each_shape() -> None:
    """Numbers stay as they are; a tensor may be written to, and is read each time."""
    threat, x = Threat("linf", 0.1, (0, 1)), torch.rand(3, 5, 1)
    with torch.inference_mode():
        first = threat.check(x)
    assert threat.check(x.flip(0)) is first
    assert threat.check(x.double()) is not first
    assert first.radius(x).requires_grad_().sum().backward() is None  # made for gradients, wherever it was first asked
    with pytest.raises(ValueError, match="NaN or infinity"):
        threat.check(x * torch.nan)
    eps = torch.full((3,), 0.1)
    own = Threat("linf", eps, (0, 1))
    own.check(x)
    eps.fill_(0.2)
    assert float(own.check(x).radius(x).max()) == pytest.approx(0.2)


def test_numbers_and_arrays_of_numpy() -> None:
    """What data gives: extremes of an array, a share of its deviation, bounds for each feature."""
    data = np.linspace(-1, 2, 12, dtype=np.float32).reshape(2, 6)
    x = torch.from_numpy(data)
    ranged = Threat("linf", np.float32(0.25), [data.min(), data.max()])
    assert (ranged.eps, ranged.bounds) == (0.25, (-1.0, 2.0))
    by_feature = Threat("l2", (np.float32(0.5),) * 6, (data.min(0), data.max(0)))
    same = Threat("l2", (0.5,) * 6, (x.amin(0), x.amax(0)))
    point = x + torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(by_feature.project(point, x), same.project(point, x))
    assert torch.equal(Threat("linf", np.array([0.0, 1.0])).radius(x), torch.tensor([[0.0], [1.0]]))
    assert ascending([np.float32(0.5), 0.25]) == (0.25, 0.5)
    with pytest.raises(TypeError, match="number"):
        Threat("linf", np.bool_(True))
