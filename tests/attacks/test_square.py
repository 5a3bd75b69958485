"""Square: always inside the threat, stronger with every query, the same in any batch, honest about what it cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from victims import Perceptron, answered, any_threat

from resolvent.attacks import AttackResult, Draws, Threat, Victim
from resolvent.attacks.square.attack import Square, square

NORMS = {"linf": 0.2, "l2": 0.7, "l1": 2.0}


def case(shape: tuple[int, ...], b: int = 12, seed: int = 1) -> tuple[Perceptron, Tensor, Tensor]:
    f = Perceptron(shape, hidden=16, classes=4)
    return f, *answered(f, shape, b, seed)


def same(a: AttackResult, b: AttackResult) -> bool:
    names = ("x_adv", "success", "loss", "margin", "norm", "queries", "non_finite")
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 2, 9), (12, 2), (9,), (2, 2, 3, 2), (1, 1), (1, 1, 1)])
def test_inside_the_threat_and_truthful(norm: str, shape: tuple[int, ...]) -> None:
    f, x, y = case(shape)
    threat = Threat(norm, NORMS[norm], (0.0, 1.0))
    found = Square(n_queries=40)(f, x, y, threat, draws=Draws.of(x))
    assert bool(threat.check(x).contains(found.x_adv, x).all())
    with torch.no_grad():
        logits = f(found.x_adv)
    assert torch.equal(found.success, logits.argmax(1) != y)
    own = logits.gather(1, y[:, None])[:, 0]
    other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    torch.testing.assert_close(found.margin, (other - own).float(), rtol=1e-5, atol=1e-6)
    assert bool((found.margin >= _margin(f, x, y) - 1e-6).all())
    assert bool((found.gradients == 0).all())


def _margin(f: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        logits = f(x)
    return (logits.scatter(1, y[:, None], -torch.inf).amax(1) - logits.gather(1, y[:, None])[:, 0]).float()


@given(
    st.sampled_from(list(NORMS)),
    st.sampled_from([(2, 5, 4), (8, 3), (5,)]),
    st.sampled_from([None, (0.0, 1.0), "feature"]),
    st.booleans(),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_threat(norm: str, shape: tuple[int, ...], bounds: Any, masked: bool, seed: int) -> None:
    f, x, y = case(shape, b=4, seed=seed)
    threat = any_threat(norm, NORMS[norm], x, bounds, masked, seed)
    found = Square(n_queries=12)(f, x, y, threat)
    assert bool(threat.check(x).contains(found.x_adv, x).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(2, 6, 6), (12, 3)])
def test_batches_do_not_matter(norm: str, shape: tuple[int, ...]) -> None:
    f, x, y = case(shape, b=10)
    threat, draws = Threat(norm, NORMS[norm] * 0.5, (0.0, 1.0)), Draws.of(x, 3)
    attack = Square(n_queries=25, restarts=2)
    whole = attack(f, x, y, threat, draws=draws)
    assert 0 < int(whole.success.sum()) < 10
    assert same(whole, attack(Victim(f, batch_size=3), x, y, threat, draws=draws))
    rows = torch.tensor([7, 2, 9])
    assert same(whole.select(rows), attack(f, x[rows], y[rows], threat, draws=draws.select(rows)))
    other = attack(f, x, y, threat, draws=Draws.of(x, 4))
    assert not torch.equal(whole.x_adv, other.x_adv)


@pytest.mark.parametrize("norm", NORMS)
def test_more_queries_are_stronger(norm: str) -> None:
    f, x, y = case((3, 6, 6), b=40)
    threat = Threat(norm, NORMS[norm] * 0.35, (0.0, 1.0))
    broken = [int(Square(n_queries=n)(f, x, y, threat).success.sum()) for n in (1, 20, 300)]
    assert broken[0] <= broken[1] < broken[2]


def test_queries_are_counted_and_end_with_success() -> None:
    f, x, y = case((12, 2))
    victim = Victim(f)
    found = Square(n_queries=50)(victim, x, y, Threat("linf", 0.15, (0.0, 1.0)))
    assert int(found.queries.sum()) <= victim.forwards <= 1.5 * int(found.queries.sum())  # some were drawn in vain
    assert bool((found.queries[~found.success] == 51).all())
    assert bool((found.queries[found.success] <= 51).all())
    assert bool(found.success.any())
    spared = Square(n_queries=50)(f, x, y, Threat("linf", 0.15, (0.0, 1.0)), clean_logits=f(x).detach())
    assert torch.equal(spared.queries, found.queries - 1)
    assert torch.equal(spared.x_adv, found.x_adv)


def test_what_is_wrong_already_is_left_alone() -> None:
    f, x, y = case((12, 2))
    found = Square(n_queries=5)(f, x, (y + 1) % 4, Threat("linf", 0.2))
    assert bool(found.success.all())
    assert torch.equal(found.x_adv, x)
    assert bool((found.queries == 1).all())


def test_linf_finds_the_corner_of_a_linear_model() -> None:
    """z = (<w, x>, 0): the worst point of the ball is x - eps sign(w), and random search gets there."""
    w = torch.randn(8, 2, generator=torch.Generator().manual_seed(2)).double()

    def f(x: Tensor) -> Tensor:
        score = (x.double() * w).sum((1, 2))
        return torch.stack([score + 100, torch.zeros_like(score)], 1)  # too far away to break: the search goes on

    x = torch.zeros(6, 8, 2)
    found = Square(n_queries=1500)(f, x, torch.zeros(6, dtype=torch.int64), Threat("linf", 0.5))
    assert torch.equal(found.x_adv, (-0.5 * w.sign()).float().expand(6, 8, 2))
    lazy = Square(n_queries=60, upstream=True)(f, x, torch.zeros(6, dtype=torch.int64), Threat("linf", 0.5))
    keen = Square(n_queries=60)(f, x, torch.zeros(6, dtype=torch.int64), Threat("linf", 0.5))
    assert keen.margin.mean() > lazy.margin.mean()


@pytest.mark.parametrize("norm", NORMS)
def test_padding_is_untouched_and_the_rest_is_attacked(norm: str) -> None:
    f, x, y = case((20, 2), b=30)
    lengths = torch.arange(30) % 20 + 1
    threat = Threat(norm, NORMS[norm]).with_lengths(lengths, 20)
    found = Square(n_queries=100)(f, x, y, threat)
    outside = torch.arange(20) >= lengths[:, None]
    assert torch.equal(found.x_adv[outside], x[outside])
    assert bool(found.success.any())


def test_a_model_that_fails_is_flagged_and_its_points_are_not_kept() -> None:
    f, x, _ = case((12, 2))

    def faulty(z: Tensor) -> Tensor:
        return torch.where(z[:, :1, 0] > 0.9, torch.nan, f(z))

    low = x.clone().clamp_max(0.85)
    found = Square(n_queries=30)(faulty, low, f(low).argmax(1), Threat("linf", 0.2))
    assert "non_finite" in found.flags
    assert bool(torch.isfinite(found.margin).all())
    assert bool((found.x_adv[:, 0, 0] <= 0.9).all())


def test_constant_model_and_zero_radius() -> None:
    x = torch.rand(3, 5, 2)
    y = torch.zeros(3, dtype=torch.int64)
    found = Square(n_queries=10)(lambda z: torch.zeros(len(z), 3), x, y, Threat("l2", 1.0, (0.0, 1.0)))
    assert not bool(found.success.any())
    assert bool(torch.isfinite(found.x_adv).all())
    f, x, y = case((5, 2), b=3)
    for norm in NORMS:
        assert torch.equal(Square(n_queries=10)(f, x, y, Threat(norm, 0.0)).x_adv, x)


def test_the_mode_of_the_model_is_kept() -> None:
    f, x, y = case((5, 2), b=3)
    f.train()
    Square(n_queries=5)(f, x, y, Threat("linf", 0.1))
    assert f.training
    assert all(p.grad is None and p.requires_grad for p in f.parameters())


def test_cross_entropy_and_the_short_form() -> None:
    f, x, y = case((3, 6, 6))
    threat = Threat("linf", 0.1, (0.0, 1.0))
    found = square(f, x, y, threat, n_queries=30, loss="ce")
    assert found.name == "square-ce"
    with torch.no_grad():
        want = nn.functional.cross_entropy(f(found.x_adv), y, reduction="none")
    torch.testing.assert_close(found.loss, want.float(), rtol=1e-5, atol=1e-6)


def test_an_image_can_be_read_as_a_sequence() -> None:
    f, x, y = case((3, 6, 6))
    found = Square(n_queries=20, form="sequence")(f, x, y, Threat("linf", 0.1, (0.0, 1.0)))
    assert bool(Threat("linf", 0.1, (0.0, 1.0)).check(x).contains(found.x_adv, x).all())
    with pytest.raises(ValueError, match="image"):
        Square(form="image")(f, x.flatten(2), y, Threat("linf", 0.1))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"n_queries": 0}, ValueError),
        ({"n_queries": "5000"}, TypeError),
        ({"p_init": 0.0}, ValueError),
        ({"p_init": 1.5}, ValueError),
        ({"p_init": "0.8"}, TypeError),
        ({"loss": "dlr"}, ValueError),
        ({"form": "tokens"}, ValueError),
        ({"restarts": 0}, ValueError),
    ],
)
def test_bad_settings(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        Square(**wrong)


def test_labels_must_be_classes() -> None:
    f, x, y = case((5, 2), b=3)
    with pytest.raises(TypeError, match="labels"):
        Square()(f, x, y.float(), Threat("linf", 0.1))
    with pytest.raises(ValueError, match="labels"):
        Square()(f, x, y + 9, Threat("linf", 0.1))
