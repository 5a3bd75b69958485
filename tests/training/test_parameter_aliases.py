"""Parameters that others stand in for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from resolvent.training.step.parameter_aliases import alias_parameters


def model() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(3, 3, bias=False)
    f = nn.Sequential(first, nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    f[2].weight = first.weight  # tied
    f[3].bias.requires_grad_(False)  # type: ignore[union-attr]
    return f


def test_twins_share_memory_and_nothing_else() -> None:
    f, x = model(), torch.randn(4, 3)
    before = list(f.parameters())
    held = f(x).sum()  # a graph that somebody holds
    want = torch.autograd.grad(held, [p for p in before if p.requires_grad], retain_graph=True)
    with alias_parameters(f) as twin:
        assert set(twin) == set(before)
        inside = list(f.parameters())
        assert all(p is twin[q] and p is not q for p, q in zip(inside, before, strict=True))
        assert all(p.data_ptr() == q.data_ptr() for p, q in zip(inside, before, strict=True))
        assert [p.requires_grad for p in inside] == [p.requires_grad for p in before]
        got = torch.autograd.grad(f(x).sum(), [twin[p] for p in before if p.requires_grad])
        assert torch.autograd.grad(f(x).sum(), before[:1], allow_unused=True) == (None,)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(p is q for p, q in zip(f.parameters(), before, strict=True))


def test_the_parameters_are_back_whatever_happens() -> None:
    f = model()
    before = list(f.parameters())
    with pytest.raises(KeyError), alias_parameters(f):
        raise KeyError
    assert all(p is q for p, q in zip(f.parameters(), before, strict=True))
