"""Objectives against the other library's, by hand, and at the edges where they used to break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.attacks.objective import objective as ob


def logits_and_labels(classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    z = torch.randn(20, classes, dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % classes
    return z, y, (y + 1) % classes


def test_by_hand() -> None:
    z = torch.tensor([[3.0, 1.0, 0.0, -1.0], [1.0, 2.0, 4.0, 3.0]], dtype=torch.float64)
    y, t = torch.tensor([0, 1]), torch.tensor([1, 2])
    assert ob.margin(z, y).tolist() == [-2.0, 2.0]
    assert ob.targeted_margin(z, y, t).tolist() == [-2.0, 2.0]
    assert_close(ob.dlr(z, y), torch.tensor([-2 / 3, 2 / 2]).double(), tolerance=1e-7)  # float32 fractions
    assert_close(ob.targeted_dlr(z, y, t), torch.tensor([-2 / 3.5, 2 / 2.5]).double(), tolerance=1e-7)  # the same
    assert_close(ob.squared_deviation(z, z + 2), torch.tensor([16.0, 16.0]).double())
    assert_close(ob.cross_entropy(z, y), z.logsumexp(1) - z.gather(1, y[:, None])[:, 0])
    assert_close(ob.targeted_cross_entropy(z, y, t), z.gather(1, t[:, None])[:, 0] - z.logsumexp(1))


def test_dlr_equals_the_reference_package() -> None:
    base = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack comes with the parity extra")
    z, y, t = logits_and_labels()
    plain = base.APGDAttack(lambda x: x, eps=1.0, device="cpu")
    aimed = base.APGDAttack_targeted(lambda x: x, eps=1.0, device="cpu")
    aimed.y_target = t
    for mine, theirs in (
        (ob.dlr(z, y), plain.dlr_loss(z, y)),
        (ob.targeted_dlr(z, y, t), aimed.dlr_loss_targeted(z, y)),
    ):
        assert_close(mine, theirs)
        g = torch.randn(20, dtype=torch.float64)
        assert_close(torch.autograd.grad(mine @ g, z)[0], torch.autograd.grad(theirs @ g, z)[0], gradient=True)


def test_scale_and_shift_leave_dlr_alone() -> None:
    z, y, t = logits_and_labels()
    assert_close(ob.dlr(7 * z + 3, y), ob.dlr(z, y))
    assert_close(ob.targeted_dlr(7 * z + 3, y, t), ob.targeted_dlr(z, y, t))


def test_signs_agree_with_the_prediction() -> None:
    z, y, _ = logits_and_labels()
    wrong = z.argmax(1) != y
    for objective in (ob.margin, ob.dlr):
        assert torch.equal(objective(z, y) > 0, wrong)


def test_kl_by_definition() -> None:
    z, _, _ = logits_and_labels()
    clean = torch.randn_like(z)
    p, q = clean.softmax(1), z.softmax(1)
    assert_close(ob.kl(z, clean), (p * (p.log() - q.log())).sum(1))
    assert_close(ob.kl(clean, clean), torch.zeros(20, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_is_finite_where_probabilities_underflow(dtype: torch.dtype) -> None:
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]], dtype=dtype, requires_grad=True)
    clean = torch.tensor([[-1e4, 1e4, 0.0], [1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    value = ob.kl(z, clean)
    grads = torch.autograd.grad(value.sum(), [z, clean])
    assert torch.isfinite(value).all()
    assert all(torch.isfinite(g).all() for g in grads)
    assert_close(
        value.detach(), torch.tensor([2e4, 2e4], dtype=dtype) + torch.tensor([0.0, 0.6931471805599453], dtype=dtype)
    )


def test_squared_deviation_on_vectors_and_scalars() -> None:
    assert ob.squared_deviation(torch.ones(3), torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert ob.squared_deviation(torch.ones(3, 2, 2), torch.zeros(3, 2, 2)).tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("objective", "classes", "instead"),
    [
        (ob.dlr, 2, ob.margin),
        (ob.dlr, 3, ob.dlr),
        (ob.targeted_dlr, 3, ob.targeted_margin),
        (ob.targeted_dlr, 4, ob.targeted_dlr),
        (ob.cross_entropy, 2, ob.cross_entropy),
    ],
)
def test_fallback(objective: ob.Objective, classes: int, instead: ob.Objective) -> None:
    chosen, note = ob.fallback(objective, classes)
    assert chosen is instead
    assert (note is None) == (chosen is objective)
    if note is not None:
        assert str(classes) in note


def test_equal_logits_stay_finite() -> None:
    z = torch.zeros(2, 5, requires_grad=True)
    y, t = torch.tensor([0, 1]), torch.tensor([2, 2])
    for value in (ob.dlr(z, y), ob.targeted_dlr(z, y, t), ob.cross_entropy(z, y)):
        assert torch.isfinite(value).all()
        assert torch.isfinite(torch.autograd.grad(value.sum(), z)[0]).all()
