"""Closed-form gradients of objectives against autograd, and through a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.attacks import Victim
from resolvent.attacks.objective import objective as ob
from resolvent.attacks.objective.gradient_probe import Fitted
from resolvent.attacks.objective.slope import backward_start, slope_of

PLAIN = {"cross_entropy": ob.cross_entropy, "margin": ob.margin, "dlr": ob.dlr}
AIMED = {
    "targeted_cross_entropy": ob.targeted_cross_entropy,
    "targeted_margin": ob.targeted_margin,
    "targeted_dlr": ob.targeted_dlr,
}
EXACT = 1e-12  # float64, the same few products and sums: two orders below the table


def case(name: str, b: int = 40, classes: int = 6, seed: int = 0) -> tuple[Tensor, tuple[Tensor, ...]]:
    z = torch.randn(b, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(b) % classes
    return z * torch.logspace(-2, 2, b, dtype=torch.float64)[:, None], (y,) if name in PLAIN else (y, (y + 1) % classes)


def by_autograd(objective: Any, z: Tensor, labels: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_()
    value = objective(leaf, *labels)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


@pytest.mark.parametrize("name", [*PLAIN, *AIMED])
def test_the_gradient_is_autograds(name: str) -> None:
    objective: Any = {**PLAIN, **AIMED}[name]
    slope = slope_of(objective)
    assert slope is not None
    for b, classes in ((40, 6), (1, 4), (7, 4), (5, 300)):
        z, labels = case(name, b, classes)
        got = slope(z, *labels)
        for mine, want in zip(got, by_autograd(objective, z, labels), strict=True):
            assert_close(mine, want, tolerance=EXACT)
        assert all(v.is_contiguous() and not v.requires_grad for v in got)


def test_ties_of_the_best_wrong_class_share_alike() -> None:
    z, y = torch.tensor([[0.0, 2.0, 2.0, 1.0]]).double(), torch.tensor([0])
    for objective in (ob.margin, ob.dlr):
        slope = slope_of(objective)
        assert slope is not None
        assert_close(slope(z, y)[1][:, 1:3], by_autograd(objective, z, (y,))[1][:, 1:3], tolerance=EXACT)


def test_large_logits_and_one_target_that_is_the_label() -> None:
    z, y = torch.tensor([[1e4, -1e4, 0.0, 3.0], [5.0, 5.0, 5.0, 5.0]]), torch.tensor([0, 1])
    for objective in AIMED.values():
        slope = slope_of(objective)
        assert slope is not None
        value, grad = slope(z[:1], y[:1], y[:1])
        assert_close(grad, by_autograd(objective, z[:1], (y[:1], y[:1]))[1])
        assert bool(torch.isfinite(value).all())
    slope = slope_of(ob.targeted_dlr)
    assert slope is not None
    value, grad = slope(z[1:], y[1:], torch.tensor([2]))  # all the same: 0 / 1e-12
    assert value.item() == 0
    assert_close(grad, torch.tensor([[0.0, -1e12, 1e12, 0.0]]))


def test_the_passes_start_in_the_logits() -> None:
    """Value and gradient through a model are those of the graph, for an objective of one's own as well."""
    w = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = torch.arange(9) % 4
    own = lambda logits, y: ob.cross_entropy(logits, y)  # noqa: E731
    assert slope_of(own) is None
    for objective in (ob.cross_entropy, Fitted(ob.dlr, y), own):
        leaf = x.clone().requires_grad_()
        want = objective(torch.tanh(leaf @ w), y)
        (grad,) = torch.autograd.grad(want.sum(), leaf)
        value, got, logits = Victim(lambda z: torch.tanh(z @ w), batch_size=4).value_and_grad(x, objective, y)
        assert_close((value, got, logits), (want.detach(), grad, torch.tanh(x @ w)), tolerance=EXACT)


def test_soft_labels_keep_the_graph() -> None:
    z, _ = case("cross_entropy", 5, 4)
    leaf, soft = z.requires_grad_(), torch.softmax(z.detach().flip(0), 1)
    values, end, start = backward_start(ob.cross_entropy, leaf, [soft])
    assert end is values
    assert bool((start == 1).all())


def test_few_classes_fall_back() -> None:
    z, y = torch.tensor([[1.0, 3.0]]).double(), torch.tensor([0])
    fitted = Fitted(ob.dlr, y)
    slope = slope_of(fitted)
    assert slope is not None
    value, grad = slope(z, y)
    assert value.tolist() == [2.0]
    assert grad.tolist() == [[-1.0, 1.0]]
    assert "margin used" in fitted.notes[0]


LABELS = torch.tensor([0, 1, 2])
ASTRAY = {
    "above": (ob.targeted_margin, LABELS, torch.tensor([1, 2, 3])),
    "below": (ob.targeted_margin, torch.tensor([0, -1, 2]), torch.tensor([1, 2, 0])),
    "too few": (ob.targeted_margin, LABELS, torch.tensor([1, 2])),
    "too few classes": (ob.targeted_dlr, LABELS, torch.tensor([1, 2, 0])),
}


@pytest.mark.parametrize("name", ASTRAY)
def test_labels_that_fit_no_logits_are_refused(name: str) -> None:
    objective, y, target = ASTRAY[name]
    slope = slope_of(objective)
    assert slope is not None
    with pytest.raises(RuntimeError):
        slope(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), y, target)


def test_short_labels_are_read_as_they_are() -> None:
    z, (y, target) = case("targeted_margin", 5, 4)
    slope = slope_of(ob.targeted_margin)
    assert slope is not None
    value, grad = slope(z, y.int(), target.int())
    assert_close((value, grad), by_autograd(ob.targeted_margin, z, (y, target)), tolerance=EXACT)
