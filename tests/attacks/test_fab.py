"""FAB: the closed-form distance of a linear model, always inside the threat, the same in any batch, no NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from victims import Perceptron, answered, any_threat

from helpers import assert_close
from resolvent.attacks import AttackResult, Draws, Threat, Victim
from resolvent.attacks.fab.attack import FAB, fab
from resolvent.attacks.fab.linear import Spots, nearest

NORMS = {"linf": 0.05, "l2": 0.3, "l1": 1.2}
DUAL = {"linf": 1, "l2": 2, "l1": torch.inf}


def case(shape: tuple[int, ...] = (6, 3), b: int = 10, seed: int = 1) -> tuple[Perceptron, Tensor, Tensor]:
    f = Perceptron(shape, hidden=12, classes=5)
    return f, *answered(f, shape, b, seed)


def same(a: AttackResult, b: AttackResult) -> bool:
    names = ("x_adv", "success", "margin", "norm", "queries", "gradients", "zero_gradient", "non_finite")
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("targets", [0, 3])
def test_linear_model_in_closed_form(norm: str, targets: int) -> None:
    """The distance to class j is |z_j - z_y| / ||w_j - w_y|| in the dual norm; FAB must come within its overshoot."""
    g = torch.Generator().manual_seed(4)
    w = torch.randn(4, 20, generator=g).double()
    x = torch.randn(30, 20, generator=g).double()
    logits = x @ w.T
    y = logits.argmax(1)
    lead = (logits.gather(1, y[:, None]) - logits).scatter(1, y[:, None], torch.inf)
    slope = torch.linalg.vector_norm(w[y][:, None] - w, DUAL[norm], dim=2).clamp_min(1e-9)
    true = (lead / slope).amin(1)
    found = FAB(targets=targets, minimal=True, steps=30)(lambda z: z @ w.T, x, y, Threat(norm, 1e3))
    assert bool(found.success.all())
    assert bool((found.norm >= true * (1 - 1e-9)).all())
    assert bool((found.norm <= true * 1.06).all())
    eps = true * torch.where(torch.arange(30) % 2 == 0, 1.06, 0.99)
    split = FAB(targets=targets, steps=30)(lambda z: z @ w.T, x, y, Threat(norm, eps))
    assert torch.equal(split.success, torch.arange(30) % 2 == 0)


@given(
    st.sampled_from(list(NORMS)),
    st.sampled_from([(2, 3, 3), (6, 2), (5,)]),
    st.sampled_from([None, (0.0, 1.0), "feature"]),
    st.tuples(st.booleans(), st.sampled_from([0, 2, 9]), st.sampled_from([1, 2])),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_threat(norm: str, shape: tuple[int, ...], bounds: Any, kind: tuple[bool, int, int], seed: int) -> None:
    masked, targets, restarts = kind
    f, x, y = case(shape, b=4, seed=seed)
    threat = any_threat(norm, 4 * NORMS[norm], x, bounds, masked, seed)
    found = FAB(steps=4, targets=targets, restarts=restarts)(f, x, y, threat)
    assert bool(threat.check(x).contains(found.x_adv, x).all())
    with torch.no_grad():
        assert torch.equal(found.success, f(found.x_adv).argmax(1) != y)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("targets", [0, 4])
def test_batches_do_not_matter(norm: str, targets: int) -> None:
    f, x, y = case()
    threat, draws = Threat(norm, 2 * NORMS[norm], (0.0, 1.0)), Draws.of(x, 3)
    attack = FAB(steps=8, targets=targets, restarts=2)
    whole = attack(f, x, y, threat, draws=draws)
    assert bool(whole.success.any())
    assert same(whole, attack(Victim(f, batch_size=4), x, y, threat, draws=draws))
    rows = torch.tensor([7, 2, 9])
    assert same(whole.select(rows), attack(f, x[rows], y[rows], threat, draws=draws.select(rows)))


def test_passes_are_counted() -> None:
    f, x, y = case()
    for attack in (FAB(steps=5, targets=4), FAB(steps=5)):
        victim = Victim(f)
        found = attack(victim, x, y, Threat("linf", 0.02, (0.0, 1.0)))
        assert int(found.queries.sum()) == victim.forwards
        assert int(found.gradients.sum()) == victim.backwards


def test_stopping_early_breaks_the_same_samples() -> None:
    f, x, y = case(b=30)
    threat = Threat("l2", 0.35, (0.0, 1.0))
    quick, thorough = (FAB(steps=20, targets=4, minimal=m)(f, x, y, threat) for m in (False, True))
    assert torch.equal(quick.success, thorough.success)
    assert 0 < int(quick.success.sum()) < 30
    assert bool((thorough.norm <= quick.norm + 1e-6)[quick.success].all())
    assert quick.queries.sum() < thorough.queries.sum()


def test_the_nearest_class_by_a_full_jacobian() -> None:
    f, x, y = case(b=6)
    x = x.double()
    rows = [torch.autograd.functional.jacobian(lambda z: f(z[None])[0], row) for row in x]
    jacobian = torch.stack(rows)  # (b, k, ...)
    logits = f(x).detach()
    for norm, dual in DUAL.items():
        gap, grad, out = nearest(Victim(f, batch_size=4), Spots(x, y, None), norm)
        for i in range(6):
            slope = jacobian[i] - jacobian[i, y[i]]
            lead = logits[i] - logits[i, y[i]]
            length = torch.linalg.vector_norm(slope.flatten(1), dual, dim=1)
            distance = torch.where(torch.arange(5) == y[i], torch.inf, lead.abs() / length)
            j = int(distance.argmin())
            assert_close(gap[i], lead[j])
            assert_close(grad[i], slope[j])
        assert_close(out, logits)


def test_padding_is_untouched() -> None:
    f, x, y = case((8, 2), b=20)
    lengths = torch.arange(20) % 8 + 1
    found = FAB(steps=15, targets=3)(f, x, y, Threat("linf", 0.3).with_lengths(lengths, 8))
    outside = torch.arange(8) >= lengths[:, None]
    assert torch.equal(found.x_adv[outside], x[outside])
    assert bool(found.success.any())


@pytest.mark.parametrize("targets", [0, 2])
def test_constant_model_is_flagged(targets: int) -> None:
    x, y = torch.rand(3, 5), torch.zeros(3, dtype=torch.int64)
    fixed = torch.tensor([1.0, 0.0, 0.0])
    for f in (lambda z: fixed.repeat(len(z), 1), lambda z: z[:, :3] * 0 + fixed):
        for norm in NORMS:
            found = FAB(steps=5, targets=targets, restarts=2)(f, x, y, Threat(norm, 0.5, (0.0, 1.0)))
            assert found.flags == ("zero_gradient",)
            assert torch.equal(found.x_adv, x)


@pytest.mark.parametrize("targets", [0, 2])
def test_broken_gradients_are_flagged(targets: int) -> None:
    """sqrt at 0 has an infinite slope; 0 times it is NaN."""

    def f(z: Tensor) -> Tensor:
        return torch.stack([z[:, 0] + 1, z[:, 1], (z[:, 2] - z[:, 2]).abs().sqrt()], 1)

    found = FAB(steps=5, targets=targets)(f, torch.rand(3, 5), torch.zeros(3, dtype=torch.int64), Threat("l2", 0.5))
    assert "non_finite" in found.flags
    assert bool(torch.isfinite(found.x_adv).all())


def test_edge_cases() -> None:
    f, x, y = case(b=3)
    assert torch.equal(FAB(steps=0)(f, x, y, Threat("l2", 1.0)).x_adv, x)
    assert torch.equal(FAB(steps=3)(f, x, y, Threat("l2", 0.0)).x_adv, x)
    wrong = FAB(steps=3, targets=2)(f, x, (y + 1) % 5, Threat("l2", 0.1))
    assert bool(wrong.success.all())
    assert bool((wrong.queries == 1).all())
    sign = lambda z: torch.stack([z[:, 0], -z[:, 0]], 1)  # noqa: E731  two classes: one target
    assert bool(FAB(steps=20, targets=9)(sign, x.flatten(1), y * 0, Threat("linf", 2.0)).success.all())


def test_modes_and_parameters_are_kept() -> None:
    f, x, y = case(b=3)
    f.train()
    fab(f, x, y, Threat("linf", 0.1), steps=2, targets=2)
    assert f.training
    assert all(p.grad is None and p.requires_grad for p in f.parameters())


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"steps": -1}, ValueError),
        ({"steps": "100"}, TypeError),
        ({"targets": 1.5}, TypeError),
        ({"restarts": 0}, ValueError),
        ({"alpha_max": 2.0}, ValueError),
        ({"eta": 0.0}, ValueError),
        ({"beta": "0.9"}, TypeError),
    ],
)
def test_bad_settings(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        FAB(**wrong)


def test_labels_must_be_classes() -> None:
    f, x, y = case(b=3)
    with pytest.raises(TypeError, match="labels"):
        FAB()(f, x, y.float(), Threat("linf", 0.1))
