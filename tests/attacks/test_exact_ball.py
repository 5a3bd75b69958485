"""What an attack returns lies in the ball in exact arithmetic, whatever digits x leaves to it."""

from __future__ import annotations

from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.attacks import APGD, FAB, FGSM, PGD, Draws, Square, Threat, autoattack, cross_entropy
from resolvent.attacks.threat.region import below, further, inward
from resolvent.models import build_model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use
from resolvent.training.step.adversarial import Inner
from resolvent.training.step.batch import Batch

ATTACKS = (PGD(steps=4), FGSM(), APGD(steps=6), FAB(steps=4), Square(n_queries=30))


def excess(x_adv: Tensor, x: Tensor, norm: str, eps: float) -> list[Fraction]:
    """By how much each sample exceeds eps (its square, for L2), in fractions."""
    found = []
    for a, b in zip(x_adv.flatten(1).tolist(), x.flatten(1).tolist(), strict=True):
        gone = [abs(Fraction(u) - Fraction(v)) for u, v in zip(a, b, strict=True)]
        size = {"linf": max(gone), "l1": sum(gone), "l2": sum(g * g for g in gone)}[norm]
        found.append(size - (Fraction(eps) ** 2 if norm == "l2" else Fraction(eps)))
    return found


def net(shift: float) -> nn.Module:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner((x - shift).float())
            return out

    return Shifted()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["torch", None])
def test_no_attack_leaves_the_ball(norm: Any, shift: float, dtype: torch.dtype, backend: Any) -> None:
    x = torch.randn(5, 8, 3, dtype=dtype, generator=torch.Generator().manual_seed(1)) + shift
    f = net(shift)
    y = f(x).argmax(1)
    with nullcontext() if backend is None else use(backend):
        for eps in (0.05, 8 / 255, 1e-3):
            for bounds in (None, (shift - 2.0, shift + 2.0)):
                inside = x if bounds is None else x.clamp(*bounds)
                threat = Threat(norm, eps, bounds)
                points = [attack(f, inside, y, threat).x_adv for attack in ATTACKS]
                for surface in (False, True):
                    points.append(threat.random_start(inside, Draws.of(x), surface=surface))
                for point in points:
                    assert max(excess(point, inside, norm, eps)) <= 0
                    assert bounds is None or bool(((point >= bounds[0]) & (point <= bounds[1])).all())


def test_attacks_still_reach_the_edge() -> None:
    """Rounding towards x takes no more than a few units in the last place."""
    x = torch.randn(5, 8, 3, generator=torch.Generator().manual_seed(1))
    f = net(0.0)
    y = f(x).argmax(1)
    for norm in ("linf", "l2", "l1"):
        threat = Threat(norm, 0.05)  # type: ignore[arg-type]
        found = PGD(steps=5, keep="last")(f, x, y, threat)
        assert float(threat.norm_of(found.x_adv - x).min()) > 0.05 * (1 - 2e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_autoattack_where_a_digit_of_x_is_longer_than_eps(norm: Any) -> None:
    x = torch.randn(4, 8, 3) + 1e6
    f = net(1e6)
    y = f(x).argmax(1)
    attacks = (APGD(cross_entropy, steps=4), FAB(steps=2), Square(n_queries=20))
    for eps in (0.05, 0.3):
        result = autoattack(f, x, y, Threat(norm, eps), attacks)
        assert max(excess(result.x_adv, x, norm, eps)) <= 0
    assert bool((autoattack(f, x, y, Threat(norm, 0.01), attacks).x_adv == x).all())  # a step is 0.0625 there


def test_an_eps_for_each_channel_and_a_mask() -> None:
    eps, shift = (0.05, 0.3, 1e-3), 1e4
    x = torch.randn(4, 8, 3) + shift
    f = net(shift)
    y, lengths = f(x).argmax(1), torch.tensor([8, 3, 5, 1])
    for norm in ("linf", "l2", "l1"):
        threat = Threat(norm, eps).with_lengths(lengths, 8)  # type: ignore[arg-type]
        for attack in ATTACKS:
            gone = (attack(f, x, y, threat).x_adv.double() - x.double()).abs()
            assert bool((gone <= torch.tensor(eps, dtype=torch.float64)).all())
            assert not bool(gone[1, 3:].any())


def test_the_inner_maximisation_of_training() -> None:
    model = build_model(robustness("s4")).eval()
    x = torch.rand(8, 16, 3) + 1e4
    batch = Batch(x, torch.zeros(8, dtype=torch.int64), None, Draws.of(x))
    inner = Inner(Threat("linf", 0.0015), steps=3)
    found = inner.ascend(model, batch, lambda t: t.random_start(x, Draws.of(x)), cross_entropy, lambda _: batch.y)
    assert max(excess(found, x, "linf", 0.0015)) <= 0


def test_rounding_towards_x_is_exact() -> None:
    x, moved = torch.tensor([1e-30, 0.0, 1e6]), torch.tensor([-0.5, 0.5, 1e6 + 0.0625])
    reach = torch.tensor([0.5, 0.5, 0.05])
    assert further(x, moved, reach).tolist() == [True, False, True]  # the first by 1e-30, which float64 cannot hold
    assert inward(x, moved, reach).tolist() == [torch.nextafter(moved, x)[0].item(), 0.5, 1e6]
    for value in (0.1, 0.05, 8 / 255, 0.0, 1.0):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            low = below(torch.tensor(value, dtype=torch.float64), dtype)
            assert low.item() <= value < torch.nextafter(low, low.new_tensor(torch.inf)).item()
