"""The plain versions that layers are timed against compute what the layers compute, values and gradients."""

from __future__ import annotations

import pytest
import torch

from resolvent import layers
from resolvent.commands.bench.execute import NAMES
from resolvent.timing.plain import plain


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 37])
def test_equals_the_layer(name: str, length: int) -> None:
    torch.manual_seed(0)
    layer = getattr(layers, name)(6).double()
    x = torch.randn(2, length, 6, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    weight = torch.randn(2, length, 6, dtype=torch.float64)
    ours, other = layer(x)[0], plain(layer)(x)
    scale = float(ours.detach().abs().max())
    torch.testing.assert_close(other, ours, rtol=0, atol=1e-10 * max(scale, 1))
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True) for y in (ours, other)),
                    strict=True):  # fmt: skip
        zero = torch.zeros(())
        a, b = (zero if g is None else g for g in (a, b))
        assert float((a - b).abs().max()) <= 1e-9 * max(1.0, float(a.abs().max()))


def test_conjugate_pairs_are_kept_by_half() -> None:
    from resolvent.timing.plain import take_half

    half = take_half(layers.S5(4, 8).system())
    assert (half.lam.shape, half.scale) == ((4,), 2)
    real = take_half(layers.EMA(4, 8).system())
    assert (real.lam.shape, real.scale) == ((4, 8), 1)


def test_a_layer_without_a_system_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        plain(layers.Attention(4))
