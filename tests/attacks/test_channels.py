"""An eps for each channel: every attack keeps to it, and finds what it finds in scaled coordinates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from victims import Padded, Recurrent, labelled, sequences

from resolvent.attacks import APGD, FAB, FGSM, PGD, Draws, Square, Threat, autoattack, dlr, targeted_dlr
from resolvent.attacks.rows import fit_threat

NORMS = ("linf", "l2", "l1")
ORDER = {"linf": np.inf, "l2": 2, "l1": 1}
SIZE = {"linf": 1.0, "l2": 4.0, "l1": 12.0}
EPS = (0.02, 0.1, 0.05)
ATTACKS: tuple[Any, ...] = (
    PGD(steps=4, stop=True),
    PGD(steps=3, keep="last", random_start=False),
    FGSM(),
    APGD(steps=8),
    APGD(dlr, steps=6, stop=False),
    APGD(targeted_dlr, steps=6, targets=3),
    FAB(steps=6, restarts=2),
    FAB(steps=6, targets=3, minimal=True),
    Square(n_queries=40),
)
NAMES = [f"{attack.name}-{i}" for i, attack in enumerate(ATTACKS)]


def assert_obeys(point: Tensor, x: Tensor, eps: Any, norm: str, bounds: Any = None, free: Any = None) -> None:
    """Sample by sample in numpy's float64, without the threat's own methods."""
    there, home = point.double().numpy(), x.double().numpy()
    limit = np.broadcast_to(np.asarray(eps, dtype=np.float64), home.shape)
    assert np.isfinite(there).all()
    touched = there != home
    assert not touched[limit == 0].any()
    if free is not None:
        assert not touched[~np.broadcast_to(free, home.shape)].any()
    share = np.divide(there - home, limit, out=np.zeros_like(home), where=limit > 0)
    for row in share.reshape(len(share), -1):
        assert np.linalg.norm(row, ORDER[norm]) <= 1 + 1e-6
    if bounds is not None:
        low, high = (np.asarray(v, dtype=np.float64) for v in bounds)
        assert (there >= low - 1e-7).all()
        assert (there <= high + 1e-7).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_every_point_keeps_to_its_channels(attack: Any, norm: Any) -> None:
    model, x = Padded(), sequences(7, l=6)
    y, lengths = labelled(model, x, 1), torch.tensor([6, 1, 3, 6, 5, 2, 4])
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.8
    within = (np.arange(6) < lengths.numpy()[:, None])[:, :, None]
    low, high = (0.0, 0.0, -0.5), (1.0, 1.25, 1.0)
    for eps, bounds, padded, masked in (
        (EPS, None, False, False),
        (EPS, (low, high), True, False),
        ((0.0, 0.1, 0.03), (0.0, 1.0), False, True),
        (torch.tensor(EPS)[None], (torch.tensor(low), torch.tensor(high)), True, True),
        (torch.rand(7, 1, 3, generator=torch.Generator().manual_seed(5)) / 10, None, False, False),
    ):
        size = tuple(SIZE[norm] * e for e in eps) if isinstance(eps, tuple) else SIZE[norm] * eps
        threat = Threat(norm, size, bounds, mask if masked else None)
        more = {"lengths": lengths} if padded else {}
        found = attack(model, x, y, threat, **more)
        free = mask.numpy() if masked else np.ones(x.shape, dtype=bool)
        assert_obeys(found.x_adv, x, size, norm, bounds, free & within if padded else free)
        assert fit_threat(threat, x, more.get("lengths")).contains(found.x_adv, x).all()
        with torch.no_grad():
            wrong = model.eval()(found.x_adv, *more.values()).argmax(1) != y
        assert torch.equal(found.success, wrong)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_other_types_and_large_inputs(norm: Any, offset: float, dtype: torch.dtype) -> None:
    """Where the last digit of x is a good part of an eps, points stop short of it."""
    inner = Recurrent()
    shifted = nn.Sequential(_Shift(offset), inner)
    shifted = shifted.to(dtype)
    x = (sequences(5) + offset).to(dtype)
    y = labelled(shifted, x, 0)
    eps = tuple(SIZE[norm] * e for e in (0.001, 0.05, 0.2))
    for attack in (PGD(steps=4), APGD(steps=5), FAB(steps=4, targets=2), Square(n_queries=20)):
        found = attack(shifted, x, y, Threat(norm, eps))
        assert_obeys(found.x_adv, x, eps, norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("offset", "eps"), [(1e6, 0.05), (1e6, 0.3), (3e4, 0.004), (1.0, 1e-7)])
def test_one_eps_below_the_last_digit_of_x(norm: Any, offset: float, eps: float) -> None:
    """Where x + eps is no number of the type, the nearest one inside is taken."""
    model = nn.Sequential(_Shift(offset), Recurrent())
    x = sequences(5) + offset
    y = labelled(model, x, 0)
    for attack in (FGSM(), PGD(steps=4), APGD(steps=5), FAB(steps=4, targets=2), Square(n_queries=20)):
        found = attack(model, x, y, Threat(norm, eps))
        assert_obeys(found.x_adv, x, eps * 1.001, norm)
    autoattack(model, x, y, Threat(norm, eps), "fast")


class _Shift(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x - self.by


class _Scaled(nn.Module):
    """f(u * by): the model as an attacker in scaled coordinates sees it."""

    def __init__(self, model: nn.Module, by: Tensor) -> None:
        super().__init__()
        self.model, self.by = model, by

    def forward(self, u: Tensor) -> Tensor:
        out: Tensor = self.model(u * self.by)
        return out


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_the_same_as_one_eps_on_scaled_channels(attack: Any, norm: Any) -> None:
    """Scales are powers of two, so that to scale x loses nothing; float64, so that walks stay together."""
    by = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
    model, x = Recurrent().double(), sequences(8).double()
    y, e = labelled(model, x, 0), 0.06 * SIZE[norm]
    here = attack(model, x, y, Threat(norm, tuple(float(e * s) for s in by), (0.0, 1.0)), draws=Draws.of(x, 4))
    bounds = (torch.zeros(3, dtype=torch.float64), 1 / by)
    there = attack(_Scaled(model, by), x / by, y, Threat(norm, e, bounds), draws=Draws.of(x, 4))
    assert torch.equal(here.success, there.success)
    assert torch.equal(here.queries, there.queries)
    torch.testing.assert_close(here.x_adv, there.x_adv * by, atol=1e-7, rtol=0)
    torch.testing.assert_close(here.norm, there.norm, atol=1e-7, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)
def test_equal_channels_are_one_eps_to_the_last_bit(attack: Any, norm: Any) -> None:
    model, x = Recurrent(), sequences(6)
    y, e = labelled(model, x, 0), 0.07 * SIZE[norm]
    one = attack(model, x, y, Threat(norm, e, (0.0, 1.0)))
    for eps in ((e, e, e), torch.full((1, 3), e, dtype=torch.float64)):
        many = attack(model, x, y, Threat(norm, eps, ((0.0,) * 3, (1.0,) * 3)))
        assert torch.equal(one.x_adv, many.x_adv)
        assert torch.equal(one.queries, many.queries)
        assert torch.equal(one.norm, many.norm)


@pytest.mark.parametrize("norm", NORMS)
def test_autoattack_and_its_record(norm: Any) -> None:
    model, x = Recurrent(), sequences(12)
    y, eps = labelled(model, x, 1), tuple(SIZE[norm] * e for e in EPS)
    threat = Threat(norm, eps, (0.0, 1.0))
    whole = autoattack(model, x, y, threat, "fast")
    assert_obeys(whole.x_adv, x, eps, norm, (0.0, 1.0))
    assert whole.threat["eps"] == list(eps)
    parts = autoattack(model, x, y, threat, "fast", batch_size=5)
    assert torch.equal(whole.robust, parts.robust)


def test_images_have_their_channels_first() -> None:
    x = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 4))
    y = model(x).argmax(1)
    for norm in NORMS:
        size = tuple(SIZE[norm] * e for e in EPS)
        found = autoattack(model, x, y, Threat(norm, size, ((0.0,) * 3, (1.0, 1.0, 1.5))), "fast")
        assert_obeys(found.x_adv, x, np.asarray(size)[:, None, None], norm)


def test_projections_are_nearest_in_the_weighted_norm() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(9, 4, 3, generator=generator, dtype=torch.float64)
    scale = torch.tensor(EPS, dtype=torch.float64)
    for norm in ("l2", "l1"):
        threat = Threat(norm, EPS, (0.0, 1.0)).check(x)  # type: ignore[arg-type]
        p = x + torch.randn(x.shape, generator=generator, dtype=torch.float64) * 0.3
        near = threat.project(p, x)
        for k in range(20):
            w = threat.project(x + torch.randn(x.shape, generator=generator, dtype=torch.float64) * 0.1**k, x)
            angle = ((p - near) * (w - near) / scale.square()).flatten(1).sum(1)
            assert (angle <= 1e-3).all()  # of numbers of size 100


def test_directions_are_steepest_in_the_weighted_norm() -> None:
    """No other point of the ball gives a linear function more than eps times the direction does."""
    generator = torch.Generator().manual_seed(2)
    g = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64)
    x = torch.zeros_like(g)
    for norm in NORMS:
        threat = Threat(norm, EPS).check(x)  # type: ignore[arg-type]
        best = (g * threat.steepest(g, 1e-9) * threat.radius(x)).flatten(1).sum(1)
        for k in range(30):
            w = threat.random_start(x, Draws.of(x, k), surface=True)
            assert ((g * w).flatten(1).sum(1) <= best + 1e-9).all()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda x: Threat("l2", (0.1, 0.2)).check(x), ValueError, "3 channels"),
        (lambda x: Threat("l2", (0.1, -0.2, 0.3)), ValueError, "not negative"),
        (lambda x: Threat("l2", (0.1, float("nan"), 0.3)), ValueError, "finite"),
        (lambda x: Threat("l2", (0.1, "a", 0.3)), TypeError, "tuple of numbers"),  # type: ignore[arg-type]
        (lambda x: Threat("l2", ()), TypeError, "tuple of numbers"),
        (lambda x: Threat("l2", [0.1, 0.2]), TypeError, "eps=\\[...\\]"),  # type: ignore[arg-type]
        (lambda x: Threat("l2", torch.ones(4)).check(x), ValueError, "tuple"),
        (lambda x: Threat("l2", torch.ones(2, 2)).check(x), ValueError, "broadcast"),
        (lambda x: Threat("l2", 0.1, ((0.0, 0.0), (1.0, 1.0))).check(x), ValueError, "3 channels"),
        (lambda x: Threat("l2", 0.1, ((0.0, 0.0, 2.0), (1.0, 1.0, 1.0))), ValueError, "above"),
        (lambda x: Threat("l2", 0.1, ((0.0, 0.0, 0.0), (1.0, 1.0, 0.1))).check(x), ValueError, "exclude"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make(sequences(2))


def test_scaled_select_and_nothing_to_do() -> None:
    x = sequences(4)
    threat = Threat("l2", EPS)
    assert threat.scaled(2.0).eps == tuple(2 * e for e in EPS)
    part = replace(threat).check(x).select(torch.tensor([2, 2, 0]))
    assert part.project(x[[2, 2, 0]] + 1, x[[2, 2, 0]]).shape == (3, 6, 3)
    still = Threat("l2", (0.0, 0.0, 0.0)).check(x)
    assert torch.equal(still.project(x + 1, x), x)
