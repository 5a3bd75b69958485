"""HopSkipJump: the distance to a plane, foolbox's distances, and an answer that hangs on labels alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from victims import Recurrent, labelled, sequences

from resolvent.attacks import Draws, HopSkipJump, Threat, answers_as_logits, autoattack, hop_skip_jump


class Plane(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1) @ self.w
        return torch.stack([-z, z], 1)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_distance_to_a_plane(norm: Any) -> None:
    model = Plane(8)
    x = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    found = hop_skip_jump(model, x, y, Threat(norm, 100.0), iterations=15, queries=60, minimal=True)
    exact = (x.flatten(1) @ model.w).abs() / (model.w.norm() if norm == "l2" else model.w.abs().sum())
    assert bool(found.success.all())
    assert bool((found.norm >= exact - 1e-5).all())
    # Linf steps along signs, which only the whole boundary would tell apart: its distance stays further from the least
    assert float((found.norm / exact).max()) < (1.05 if norm == "l2" else 1.35)


def test_it_is_as_near_as_foolbox() -> None:
    foolbox = pytest.importorskip("foolbox")
    model, x = Recurrent().eval(), sequences(n=8, l=6)
    y = labelled(model, x, wrong=0)
    model.eval()
    ours = hop_skip_jump(model, x, y, Threat("l2", 100.0, (0.0, 1.0)), iterations=8, queries=50, minimal=True)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    torch.manual_seed(0)
    attack = foolbox.attacks.HopSkipJumpAttack(
        steps=8, initial_gradient_eval_steps=50, max_gradient_eval_steps=200,
        init_attack=foolbox.attacks.LinearSearchBlendedUniformNoiseAttack(steps=50),
    )  # fmt: skip
    _, theirs, _ = attack(wrapped, x, y, epsilons=None)
    far = (theirs - x).flatten(1).norm(dim=1)
    assert float(ours.norm.median()) <= 1.1 * float(far.median())


def test_labels_are_all_that_it_needs() -> None:
    model, x = Recurrent(), sequences(n=10)
    y = labelled(model, x, wrong=0)
    model.eval()
    label_only = answers_as_logits(lambda u: model(u).argmax(1), 4)
    threat = Threat("l2", 0.6, (0.0, 1.0))
    a, b = (HopSkipJump(iterations=5)(f, x, y, threat) for f in (model, label_only))
    assert torch.equal(a.x_adv, b.x_adv)
    assert torch.equal(a.success, b.success)
    assert bool(a.success.any())
    assert int(b.gradients.sum()) == 0
    assert bool(threat.check(x).contains(b.x_adv, x).all())
    with pytest.raises(ValueError, match="class numbers"):
        HopSkipJump()(answers_as_logits(model, 4), x, y, threat)


def test_a_sample_does_not_depend_on_the_others_and_noise_does_worse() -> None:
    model, x = Recurrent(), sequences(n=8)
    y = labelled(model, x, wrong=0)
    threat = Threat("linf", 0.2, (0.0, 1.0), mask=(torch.arange(6) < 5).expand(8, 6))
    whole = HopSkipJump(iterations=4)(model, x, y, threat)
    part = HopSkipJump(iterations=4)(
        model, x[3:5], y[3:5], threat.select(torch.tensor([3, 4])), draws=Draws.of(x[3:5], first=3)
    )
    assert torch.allclose(whole.x_adv[3:5], part.x_adv, atol=1e-6)
    assert not bool((whole.x_adv[:, 5] != x[:, 5]).any())
    noise = threat.check(x).random_start(x, Draws.of(x), surface=True)
    model.eval()
    assert int(whole.success.sum()) > int((model(noise).argmax(1) != y).sum())


def test_nan_is_no_answer() -> None:
    """Points without an answer lie nearer than the boundary; the search goes past them."""

    def f(x: Tensor) -> Tensor:
        z = torch.where(x[:, :1] > 0.2, torch.nan, 4 * x[:, 1:])
        return torch.cat([z, -z], 1)

    x, y = torch.tensor([[0.0, -0.5], [0.1, -0.4]]), torch.tensor([1, 1])
    found = hop_skip_jump(f, x, y, Threat("l2", 0.7, (-1.0, 1.0)), iterations=8, queries=40)
    assert bool(found.success.all())
    assert bool(found.non_finite.all())
    assert torch.equal(f(found.x_adv).argmax(1), 1 - y)


def test_as_a_preset_and_bad_norms() -> None:
    model, x = Recurrent(), sequences(n=6)
    y = labelled(model, x)
    result = autoattack(model, x, y, Threat("l2", 1.0, (0.0, 1.0)), (HopSkipJump(iterations=3),))
    assert result.stages == ("clean", "hop-skip-jump")
    with pytest.raises(ValueError, match="linf"):
        HopSkipJump()(model, x, y, Threat("l1", 1.0))
