"""RGLRU against closed forms, a written-out recurrence, Hugging Face's RecurrentGemma and itself."""

from __future__ import annotations

import math

import agreement
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers import assert_close
from resolvent.layers.rglru import RGLRU
from resolvent.ops.gated_scan.reference import clipped_sqrt

F64 = torch.float64
LAYERS = [pytest.param({"d_model": 3}, id="one head"), pytest.param({"d_model": 6, "heads": 3}, id="three heads")]


def by_hand(layer: RGLRU, x: Tensor) -> Tensor:
    """The paper's recurrence, with the block-diagonal matrices written out in full."""
    W_a, W_x = (torch.block_diag(*W) for W in (layer.W_a, layer.W_x))
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t, u in enumerate(x[b]):
            r = 1 / (1 + torch.exp(-(u @ W_a + layer.b_a)))
            i = 1 / (1 + torch.exp(-(u @ W_x + layer.b_x)))
            a = torch.exp(-torch.log1p(torch.exp(layer.L))) ** (layer.c * r)
            y[b, t] = i * u if t == 0 else a * y[b, t - 1] + torch.sqrt(1 - a * a) * i * u
    return y


def steady(a: float, d: int = 1) -> RGLRU:
    """A layer whose gates do not look at the input: a_t = a and i_t = 1 to rounding."""
    layer = RGLRU(d).double()
    with torch.no_grad():
        layer.W_a.zero_(), layer.W_x.zero_()
        layer.b_a.fill_(50.0), layer.b_x.fill_(50.0)  # sigmoid(50) is 1 to the last bit
        layer.L.fill_(math.log(math.expm1(-math.log(a) / layer.c)))
    return layer


@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize("l", [1, 9])
def test_equals_the_recurrence_by_hand(settings: dict[str, int], l: int) -> None:
    layer = agreement.jittered(RGLRU(**settings))
    x = agreement.inputs(layer, 2, l)
    with torch.no_grad():
        assert_close(layer(x)[0], by_hand(layer, x))


@pytest.mark.parametrize("settings", LAYERS)
def test_linearised_system_simulates_the_layer(settings: dict[str, int]) -> None:
    layer = agreement.jittered(RGLRU(**settings))
    x = agreement.inputs(layer, 2, 11)
    system = layer.linearise(x)
    assert system.bank == (2, layer.d_model)
    y, end = system.block_diagonal().simulate(x)
    want, state = layer(x)
    assert_close([y, end], [want, state["h"]])


@pytest.mark.parametrize("settings", LAYERS)
def test_streams_from_any_cut(settings: dict[str, int]) -> None:
    layer = agreement.jittered(RGLRU(**settings))
    for l in (1, 13):
        agreement.check_streams(layer, agreement.inputs(layer, 2, l))
    agreement.check_lengths(layer, agreement.inputs(layer))
    agreement.check_causal(layer, agreement.inputs(layer))


def test_a_fresh_state_is_the_start_of_a_document() -> None:
    """The first step has a = 0 and a multiplier of 1, whatever h a fresh state holds; later steps do not."""
    layer = agreement.jittered(RGLRU(3))
    x = agreement.inputs(layer, 2, 4)
    gate = torch.sigmoid(x @ layer.W_x[0] + layer.b_x)
    y, state = layer(x)
    assert_close(y[:, 0], gate[:, 0] * x[:, 0])
    assert bool(state["started"].all())
    junk = {"h": torch.full((2, 3), 9.0, dtype=F64), "started": torch.tensor([False, True])}
    mixed, _ = layer(x, junk)
    assert_close(mixed[0], y[0])
    r = torch.sigmoid(x[1, 0] @ layer.W_a[0] + layer.b_a)
    a = torch.exp(-8 * r * F.softplus(layer.L))
    assert_close(mixed[1, 0], a * 9 + torch.sqrt(1 - a**2) * gate[1, 0] * x[1, 0])
    assert_close(layer.step(x[:, 0], junk)[0], mixed[:, 0])


def test_two_directions_add() -> None:
    both = agreement.jittered(RGLRU(4, heads=2, bidirectional=True))
    there, back = RGLRU(4, heads=2).double(), RGLRU(4, heads=2).double()
    weights = both.state_dict()
    there.load_state_dict({k: v for k, v in weights.items() if not k.startswith("other.")})
    back.load_state_dict({k.removeprefix("other."): v for k, v in weights.items() if k.startswith("other.")})
    agreement.check_two_directions(both, there, back, agreement.inputs(both))
    agreement.check_lengths(both, agreement.inputs(both))
    with pytest.raises(ValueError, match="bidirectional"):
        both.linearise(agreement.inputs(both))


def test_transforms_and_precision() -> None:
    layer = agreement.jittered(RGLRU(6, heads=3))
    agreement.check_transforms(layer, agreement.inputs(layer))
    agreement.check_precision(layer, agreement.inputs(layer))
    agreement.check_survives_init(layer)


def test_decay_lies_between_zero_and_one() -> None:
    layer = RGLRU(64).double()
    lam = layer.linearise(5 * agreement.inputs(layer, 2, 50)).A.lam[:, :, 1:]
    assert bool(((lam > 0) & (lam < 1)).all())


def test_closed_recurrent_gate_is_pure_memory() -> None:
    """r = 0: a = 1 and the input weighs nothing, in values and with finite gradients."""
    layer = RGLRU(3).double()
    with torch.no_grad():
        layer.W_a.zero_(), layer.b_a.fill_(-1000.0)
    x = agreement.inputs(layer).requires_grad_()
    y, _ = layer(x)
    assert bool((y[:, 1:] == y[:, :1]).all())
    slopes = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in slopes)


@pytest.mark.parametrize("a", [0.3, 0.9, 0.999])
def test_gain_and_variance_for_fixed_a(a: float) -> None:
    """A constant input is amplified by sqrt((1 + a) / (1 - a)); unit white noise keeps variance 1."""
    layer = steady(a)
    l = 40_000
    with torch.no_grad():
        y, _ = layer(torch.ones(1, l, 1, dtype=F64))
        assert_close(y[0, -1, 0], torch.tensor(math.sqrt((1 + a) / (1 - a)), dtype=F64))
        noise = layer(torch.randn(64, 5000, 1, dtype=F64))[0][:, -2000:]
    # independent samples: about 64 * 2000 (1 - a) / (1 + a); four standard errors of a variance are 4 sqrt(2 / samples)
    samples = max(64.0, 64 * 2000 * (1 - a) / (1 + a))
    assert abs(noise.var().item() - 1) < 4 * math.sqrt(2 / samples)


def test_gain_has_no_cancellation_near_one() -> None:
    """sqrt(1 - a^2) keeps float32's digits where a rounds to 1: a = 1 - 1e-9."""
    layer = steady(1 - 1e-9).float()
    a, gain = layer._gates(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool))
    assert a.item() == 1.0
    assert abs(gain.item() / math.sqrt(2e-9) - 1) < 1e-5


def test_clipped_square_root() -> None:
    x = torch.tensor([0.0, 1e-12, 2e-7, 3e-7, 0.25, 1.0], dtype=F64, requires_grad=True)
    y = clipped_sqrt(x)
    assert_close(y, x.sqrt())
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert_close(slope, torch.tensor([1000, 1000, 1000, 0.5 / math.sqrt(3e-7), 1, 0.5], dtype=F64))
    (curve,) = torch.autograd.grad(slope.sum(), x)
    assert_close(curve[-2:], torch.tensor([-2, -0.25], dtype=F64))
    assert bool((curve[:3] == 0).all())
    tangent = torch.func.jvp(clipped_sqrt, (x.detach(),), (torch.ones(6, dtype=F64),))[1]
    assert_close(tangent, slope)


@pytest.mark.parametrize(("convention", "power"), [("code", 1.0), ("paper", 8.0)])
def test_initial_radius(convention: str, power: float) -> None:
    """The code puts exp(-softplus(L)) in [.9, .999], the paper its eighth power; squares are uniform."""
    layer = RGLRU(4000, heads=40, convention=convention).double()
    u = torch.exp(-power * F.softplus(layer.L))
    assert 0.9 - 1e-4 < u.min().item() < 0.901  # L is drawn in float32
    assert 0.998 < u.max().item() < 0.999 + 1e-4
    assert abs((u**2).mean().item() - (0.9**2 + 0.999**2) / 2) < 3e-3
    at_one = torch.exp(-8.0 * F.softplus(layer.L))
    low = 0.9**8 if convention == "code" else 0.9
    assert abs(at_one.min().item() - low) < 2e-3


def test_recurrent_gemma_of_hugging_face() -> None:
    """Values and gradients of RecurrentGemmaRglru with the same weights; its scan runs in float32."""
    gemma = pytest.importorskip(
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma", reason="resolvent[parity]"
    )
    config = pytest.importorskip("transformers").RecurrentGemmaConfig(
        hidden_size=12, lru_width=12, num_attention_heads=3, num_hidden_layers=1, vocab_size=11, intermediate_size=24
    )
    theirs = gemma.RecurrentGemmaRglru(config)
    layer = RGLRU(12, heads=3)
    pairs = [
        (layer.W_a, theirs.recurrent_gate_weight),
        (layer.b_a, theirs.recurrent_gate_bias),
        (layer.W_x, theirs.input_gate_weight),
        (layer.b_x, theirs.input_gate_bias),
        (layer.L, theirs.recurrent_param),
    ]
    with torch.no_grad():
        layer.b_a.normal_(), layer.b_x.normal_()
        for mine, other in pairs:
            other.copy_(mine.reshape(other.shape))
    x = torch.randn(2, 17, 12, requires_grad=True)
    got, state = layer(x)
    want = theirs(x, torch.arange(17).expand(2, 17))
    assert_close([got, state["h"]], [want, theirs.recurrent_states])
    weight = torch.randn_like(want)
    slopes = [
        torch.autograd.grad((y * weight).sum(), [x, *(pair[k] for pair in pairs)]) for k, y in enumerate((got, want))
    ]
    assert_close(*([g.reshape(-1) for g in s] for s in slopes), gradient=True)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_parameters_stay_finite(size: float) -> None:
    layer = RGLRU(3)
    with torch.no_grad():
        layer.L.fill_(size)
        layer.b_a.fill_(-size)
    x = torch.randn(2, 9, 3, requires_grad=True)
    y, _ = layer(x)
    slopes = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    assert all(bool(torch.isfinite(t).all()) for t in (y, *slopes))
    lam = layer.linearise(x).A.lam
    assert bool(((lam >= 0) & (lam <= 1)).all())


def test_optimiser_groups() -> None:
    assert agreement.undecayed(RGLRU(4)) == {"L", "b_a", "b_x"}
    assert "other.L" in agreement.undecayed(RGLRU(4, bidirectional=True))


def test_frozen_keeps_values() -> None:
    layer = RGLRU(4).double()
    x = agreement.inputs(layer)
    want = layer(x)[0]
    with layer.frozen():
        assert_close([layer(x)[0], agreement.stepwise(layer, x)[0]], [want, want])


def test_bad_input() -> None:
    wrongs = [{"heads": 2}, {"heads": 0}, {"c": 0.0}, {"c": math.inf}, {"radius": (0.9, 1.0)}, {"convention": "blog"}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="RGLRU"):
            RGLRU(3, **wrong)
    layer = RGLRU(3)
    with pytest.raises(TypeError, match="entries"):
        layer(torch.zeros(2, 5, 3), torch.zeros(2, 3))
    with pytest.raises(TypeError, match="bool"):
        layer(torch.zeros(2, 5, 3), {"h": torch.zeros(2, 3), "started": torch.zeros(2)})
