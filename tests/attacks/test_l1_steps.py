"""L1 steps go into few entries: into none that a bound holds, where all of a step would be lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers import assert_close
from resolvent.attacks import SparseSteps, Threat, fgsm, pgd


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [False, True])
def test_l1_steps_go_where_the_bounds_leave_room(dtype: torch.dtype, start: bool) -> None:
    """The steepest entries lie at the bound that a step would push them through: the best point is a knapsack, filled
    in the order of the slopes."""
    n, eps = 60, 2.0
    model = nn.Linear(n, 2).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.stack([torch.zeros(n), torch.linspace(-3, 3, n)]))
        model.bias.copy_(torch.tensor([12.0, 0.0]))
    w = model.weight[1].detach()
    x = torch.full((3, n), 0.7, dtype=dtype)
    x[:, w.abs() > 1] = (w > 0).to(dtype)[w.abs() > 1]  # two thirds, and the steepest
    x[2] = 0.7  # one sample with room everywhere
    room = torch.where(w > 0, 1.0 - x, x).double()
    order = w.abs().argsort(descending=True)
    spent = torch.minimum(room[:, order], (eps - (room[:, order].cumsum(1) - room[:, order])).clamp_min(0))
    best = (model(x)[:, 1] - model(x)[:, 0]).detach().double() + (spent * w[order].abs()).sum(1)
    y, threat = torch.zeros(3, dtype=torch.int64), Threat("l1", eps, (0.0, 1.0))
    found = pgd(model, x, y, threat, steps=60, random_start=start)
    assert threat.contains(found.x_adv, x).all()
    assert_close(found.margin.double(), best, tolerance=1e-3)  # steps of 2.5 eps / 60 reach it no nearer
    assert (fgsm(model, x, y, threat).margin[:2] > (model(x)[:2, 1] - model(x)[:2, 0]) + 0.5).all()


def test_sparse_l1_steps_are_chosen_where_the_bounds_leave_room() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([torch.zeros(12), torch.linspace(3, 1, 12)]))
        model[1].bias.zero_()
    x = torch.full((1, 12, 1), 0.5)
    x[:, :6] = 1.0
    found = SparseSteps(swaps=0)(model, x, torch.tensor([0]), Threat("l1", 0.5, (0.0, 1.0), steps=1))
    assert torch.equal((found.x_adv != x).flatten().nonzero().flatten(), torch.tensor([6]))
