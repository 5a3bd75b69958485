"""Gradients of an attack inside autocast: those of the types that the forward pass chose."""

from __future__ import annotations

import torch
from torch import nn

from resolvent.attacks.objective.objective import cross_entropy
from resolvent.attacks.objective.slope import slope
from resolvent.attacks.victim import Victim


class Careful(nn.Module):
    """A product in float32 whatever the context, as recurrences are."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.map(x)


def test_autocast_does_not_reach_the_way_back() -> None:
    torch.manual_seed(0)
    victim, x, y = Victim(Careful()), torch.randn(5, 64), torch.arange(5) % 3
    want = victim.value_and_grad(x, cross_entropy, y)[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(victim.value_and_grad(x, cross_entropy, y)[1], want)


def test_a_graph_that_is_kept_and_an_x_that_does_not_matter() -> None:
    x, other = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y = x.square()
    first, second = (slope(y, x, torch.ones(3), keep=True) for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert slope(y.sum(), other) is None
