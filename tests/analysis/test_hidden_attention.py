"""The matrix of a recurrence: what it does to an input is what the layer does; Toeplitz where nothing varies."""

from __future__ import annotations

import pytest
import torch

from resolvent.analysis import hidden_attention
from resolvent.layers import RGLRU, S4D, S5, S6


@pytest.mark.parametrize("make", [lambda: S6(3, 4), lambda: RGLRU(3)], ids=["s6", "rglru"])
def test_of_selective_layers(make: object) -> None:
    torch.manual_seed(0)
    layer = make().double()  # type: ignore[operator]
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    M = hidden_attention(layer.linearise(x))  # (b, d, l, l)
    assert M.shape == (2, 3, 7, 7)
    assert torch.allclose(torch.einsum("bdts,bsd->btd", M, x), layer(x)[0], atol=1e-10)
    assert not bool(M.triu(1).any())  # causal
    other = hidden_attention(layer.linearise(2 * x))
    assert not torch.allclose(M, other)  # it hangs on x


def test_of_constant_systems() -> None:
    torch.manual_seed(0)
    layer, x = S4D(3, 8).double(), torch.randn(2, 9, 3, dtype=torch.float64)
    M = hidden_attention(layer.system(), 9)  # (d, l, l)
    assert torch.allclose(torch.einsum("dts,bsd->btd", M, x), layer(x)[0], atol=1e-10)
    assert torch.allclose(M[:, 1:, 1:], M[:, :-1, :-1], atol=1e-12)
    many = S5(3, 8).double()
    whole = hidden_attention(many.system(), 9)  # (l, l, d, d)
    assert torch.allclose(torch.einsum("tsij,bsj->bti", whole, x), many(x)[0], atol=1e-10)


def test_gradients_reach_the_layer() -> None:
    layer = S6(2, 3).double()
    x = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    hidden_attention(layer.linearise(x)).square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.any())


def test_what_is_refused() -> None:
    layer = S4D(2, 4)
    with pytest.raises(ValueError, match="give one"):
        hidden_attention(layer.system())
    with pytest.raises(ValueError, match="leave length out"):
        hidden_attention(S6(2, 3).linearise(torch.randn(1, 4, 2)), 4)
    with pytest.raises(ValueError, match="delay"):
        hidden_attention(layer.system().delayed(), 4)
    with pytest.raises(TypeError, match="linearise"):
        hidden_attention(layer, 4)  # type: ignore[arg-type]
