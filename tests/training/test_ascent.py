"""A step of an attack, against the same written out number by number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from resolvent.attacks import Threat
from resolvent.training.step.adversarial import plain_step, step_signs

BAD = (math.nan, math.inf, -math.inf)


def case(b: int, shape: tuple[int, ...], classes: int = 3) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Threat]:
    x, grad = torch.rand(b, *shape), torch.randn(b, *shape)
    grad.view(b, -1)[:, ::5] = 0.0
    return x, grad, (torch.randn(b), torch.randn(b, classes)), Threat("linf", torch.linspace(0.01, 0.3, b), (0, 1))


def written_out(x: Tensor, g: Tensor, seen: tuple[Tensor, Tensor], threat: Threat, centre: Tensor) -> Tensor:
    moved, eps = x.clone(), threat.radius(centre).flatten()
    for i in range(len(x)):
        numbers = [*seen[0][i].flatten().tolist(), *seen[1][i].flatten().tolist(), *g[i].flatten().tolist()]
        if not all(map(math.isfinite, numbers)):
            continue
        for j in range(x[i].numel()):
            at, c = moved[i].view(-1), centre[i].flatten()[j]
            slope = float(g[i].flatten()[j])
            there = at[j] + (0.25 * eps[i] if slope > 0 else -0.25 * eps[i] if slope < 0 else 0.0)
            at[j] = min(max(there, max(c - eps[i], torch.tensor(0.0))), min(c + eps[i], torch.tensor(1.0)))
    return moved


def compare(step: object, b: int, shape: tuple[int, ...]) -> None:
    x, grad, seen, threat = case(b, shape)
    if b > 3:
        grad.view(b, -1)[0, -1], seen[0][1], seen[1][2, 1] = BAD
    region = threat.around(x)
    start = region.project(x + 0.01 * torch.randn_like(x))
    size = 0.25 * threat.radius(x)
    found = step(start, grad, seen, region, size)  # type: ignore[operator]
    assert torch.equal(found, written_out(start, grad, seen, threat, x))


@pytest.mark.parametrize(("b", "shape"), [(5, (7, 3)), (1, (1, 1)), (4, (11,))])
def test_a_step_is_what_it_says(b: int, shape: tuple[int, ...]) -> None:
    compare(plain_step, b, shape)
    compare(step_signs, b, shape)
