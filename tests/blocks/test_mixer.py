"""Mixers and AdS against their formulas, with explicit weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.blocks import AdS, GatedMLP, Mixer

D, F64 = 5, torch.float64


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


@pytest.mark.parametrize("kind", ["none", "gelu", "linear", "glu", "full_glu", "half_glu1", "half_glu2", "mlp"])
def test_mixer_is_its_formula(kind: str) -> None:
    mixer = Mixer(D, kind, act="gelu_tanh", expand=3).double()  # type: ignore[arg-type]
    y = torch.randn(2, 4, D, dtype=F64)
    g = gelu_tanh(y)
    if kind in ("none", "gelu"):
        assert not list(mixer.parameters())
        assert_close(mixer(y), g)
        return
    W, b = mixer.linear.weight, mixer.linear.bias
    w = g @ W.T + b
    want = {
        "linear": lambda: w,
        "glu": lambda: w[..., :D] * sigmoid(w[..., D:]),
        "full_glu": lambda: w[..., :D] * sigmoid(w[..., D:]),
        "half_glu1": lambda: g * sigmoid(w),
        "half_glu2": lambda: y * sigmoid(w),
        "mlp": lambda: gelu_tanh(w) @ mixer.down.weight.T + mixer.down.bias,
    }[kind]()
    assert_close(mixer(y), want)


def test_exact_gelu_and_final_activation() -> None:
    mixer = Mixer(D, "linear", act="gelu", final="gelu").double()
    y = torch.randn(3, D, dtype=F64)
    assert_close(mixer(y), gelu(gelu(y) @ mixer.linear.weight.T + mixer.linear.bias))


def test_dropout_falls_between_activation_and_map_only() -> None:
    y = torch.randn(50, D, dtype=F64)
    assert_close(Mixer(D, "none", dropout=0.9).train()(y), gelu(y))
    dropped = Mixer(D, "half_glu1", dropout=0.9).double().train()(y)
    assert 0.6 < (dropped == 0).double().mean() < 1


def test_gated_mlp_is_its_formula() -> None:
    mlp, x = GatedMLP(D, 2).double(), torch.randn(3, D, dtype=F64)
    U1, U2 = mlp.up.weight.split(2 * D)
    b1, b2 = mlp.up.bias.split(2 * D)
    want = (gelu_tanh(x @ U1.T + b1) * (x @ U2.T + b2)) @ mlp.down.weight.T + mlp.down.bias
    assert_close(mlp(x), want)


def test_unknown_mixer_is_named() -> None:
    with pytest.raises(ValueError, match="'half_glu2'"):
        Mixer(D, "half_glu3")  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "sigma"), [("relu", torch.relu), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh)])
@pytest.mark.parametrize("shift", [False, True])
def test_ads_is_its_formula(kind: str, sigma: object, shift: bool) -> None:
    ads = AdS(D, kind, shift=shift).double()  # type: ignore[arg-type]
    y = torch.randn(2, 4, D, dtype=F64)
    want = sigma(y @ ads.scale.weight.T + ads.scale.bias) * y  # type: ignore[operator]
    if shift:
        want = want + sigma(y @ ads.shift.weight.T + ads.shift.bias)  # type: ignore[operator]
    assert_close(ads(y), want)
    assert sum(p.numel() for p in ads.parameters()) == (2 if shift else 1) * (D * D + D)


def test_saturated_sigmoid_ads_is_the_identity() -> None:
    ads, y = AdS(D, "sigmoid").double(), torch.randn(4, D, dtype=F64)
    with torch.no_grad():
        ads.scale.bias.fill_(1e3)
    assert torch.equal(ads(y), y)


def test_tanh_ads_with_zero_weights_is_zero() -> None:
    ads, y = AdS(D, "tanh").double(), torch.randn(4, D, dtype=F64)
    with torch.no_grad():
        ads.scale.weight.zero_(), ads.scale.bias.zero_()
    assert not ads(y).any()


def test_unknown_ads_is_named() -> None:
    with pytest.raises(ValueError, match="'tanh'"):
        AdS(D, "gelu")  # type: ignore[arg-type]
