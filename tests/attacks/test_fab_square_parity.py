"""FAB-T and Square against pyautoattack on a small image classifier; without `upstream=True` ours are stronger."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.attacks import Threat
from resolvent.attacks.fab.attack import FAB
from resolvent.attacks.square.attack import Square

pytest.importorskip("pyautoattack", reason="the parity extra is not installed")

SEED = 3
THREATS = [("linf", "Linf", 0.12), ("l2", "L2", 0.9)]


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten smooth patterns under noise, 10 x 10: upstream's L2 start takes few sizes, 12 is not one of them."""
    fixed = torch.Generator().manual_seed(1)
    patterns = F.interpolate(torch.randn(10, 1, 4, 4, generator=fixed), size=(10, 10), mode="bilinear")
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=g)
    return (0.5 + 0.2 * patterns[y] + 0.15 * torch.randn(n, 1, 10, 10, generator=g)).clamp(0, 1), y


@cache
def trained() -> nn.Module:
    """Trained on FGSM points for a few seconds, so that robust accuracy is neither 0 nor 1."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = (nn.Flatten(), nn.Linear(200, 48), nn.ReLU(), nn.Linear(48, 10))
        net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), *hidden)
        optimiser = torch.optim.Adam(net.parameters(), 3e-3)
        for i in range(200):
            x, y = images(128, 1000 + i)
            x.requires_grad_()
            (grad,) = torch.autograd.grad(F.cross_entropy(net(x), y), [x])
            loss = F.cross_entropy(net((x.detach() + 0.06 * grad.sign()).clamp(0, 1)), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net.eval()


def standing(x: Tensor, y: Tensor) -> float:
    """Accuracy in points."""
    with torch.no_grad():
        return 100 * float((trained()(x).argmax(1) == y).double().mean())


def fab_t(name: str, eps: float, x: Tensor, y: Tensor, steps: int) -> float:
    from pyautoattack.fab_pt import FABAttack_PT

    return standing(FABAttack_PT(trained(), name, 1, steps, eps, seed=0, targeted=True).perturb(x, y), y)


def square(name: str, eps: float, x: Tensor, y: Tensor, queries: int) -> float:
    """Upstream's search with our random numbers: two seeds of one search lie up to three points apart here."""
    from driven_square import DrivenSquare

    return standing(DrivenSquare(trained(), name, queries, eps, SEED).perturb(x, y), y)


def compare(norm: str, name: str, eps: float, n: int, budget: tuple[int, int], points: float) -> None:
    """`points` apart at most: FAB-T has nothing random, and both searches of Square draw the same windows."""
    from driven_square import shared

    x, y = images(n, 99)
    threat, (steps, queries) = Threat(norm, eps, (0.0, 1.0)), budget
    walk, search = fab_t(name, eps, x, y, steps), square(name, eps, x, y, queries)
    assert 5 < walk < 95
    assert 5 < search < 99
    ours = standing(FAB(steps=steps, targets=9, upstream=True)(trained(), x, y, threat).x_adv, y)
    assert abs(ours - walk) <= points, f"FAB-T: {ours:.1f} against {walk:.1f}"
    assert standing(FAB(steps=steps, targets=9)(trained(), x, y, threat).x_adv, y) <= walk + points
    draws = shared(n, SEED)
    ours = standing(Square(n_queries=queries, upstream=True)(trained(), x, y, threat, draws=draws).x_adv, y)
    assert abs(ours - search) <= points, f"Square: {ours:.1f} against {search:.1f}"


@pytest.mark.parametrize(("norm", "name", "eps"), THREATS)
def test_parity_quickly(norm: str, name: str, eps: float) -> None:
    """100 samples: one of them is one point."""
    compare(norm, name, eps, 100, (20, 300), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "name", "eps"), THREATS)
def test_parity(norm: str, name: str, eps: float) -> None:
    compare(norm, name, eps, 1000, (100, 5000), 0.5)
