"""S6 and ScalarS6 against closed forms, a written-out recurrence, Hugging Face's Mamba and themselves."""

from __future__ import annotations

import math

import agreement
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from helpers import assert_close
from resolvent.layers.contract import Layer
from resolvent.layers.s6 import S6
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.layers.shortconv import ShortConv

F64 = torch.float64
LAYERS = [
    pytest.param(lambda **k: S6(3, 4, **k), id="s6"),
    pytest.param(lambda **k: S6(17, 1, dt_rank=3, **k), id="s6, one state"),
    pytest.param(lambda **k: ScalarS6(3, 4, abscissa=0.05, **k), id="scalar"),
]


def by_hand(layer: S6 | ScalarS6, x: Tensor) -> Tensor:
    """The recurrence of the papers with explicit sums over batch, time, channels and states."""
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        h = torch.zeros(layer.d_model, layer.d_state, dtype=x.dtype)
        for t, u in enumerate(x[b]):
            if isinstance(layer, S6):
                s, B, C = (layer.x_proj @ u).split([layer.dt_rank, layer.d_state, layer.d_state])
                dt = torch.log1p(torch.exp(layer.dt_proj @ s + layer.dt_bias))
                A, D = -torch.exp(layer.A_log), layer.D
            else:
                B, C, A, D = layer.W_B @ u, layer.W_C @ u, layer.A, torch.zeros_like(u)
                dt = torch.log1p(torch.exp(layer.p + layer.q @ u)).expand_as(u)
            for j in range(layer.d_model):
                h[j] = torch.exp(dt[j] * A[j]) * h[j] + dt[j] * B * u[j]
            y[b, t] = h @ C + D * u
    return y


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("l", [1, 9])
def test_equals_the_recurrence_by_hand(make: type[Layer], l: int) -> None:
    layer = agreement.jittered(make())
    x = agreement.inputs(layer, 2, l)
    with torch.no_grad():
        assert_close(layer(x)[0], by_hand(layer, x))


@pytest.mark.parametrize("make", LAYERS)
def test_linearised_system_simulates_the_layer(make: type[Layer]) -> None:
    layer = agreement.jittered(make())
    x = agreement.inputs(layer, 2, 11)
    system = layer.linearise(x)
    assert system.bank == (2, layer.d_model)
    assert system.time_varying
    y, end = system.block_diagonal().simulate(x)
    want, state = layer(x)
    assert_close(y, want)
    assert_close(end.reshape(state.shape), state)


@pytest.mark.parametrize("make", LAYERS)
def test_streams_from_any_cut(make: type[Layer]) -> None:
    layer = agreement.jittered(make())
    for l in (1, 13):
        agreement.check_streams(layer, agreement.inputs(layer, 2, l))
    agreement.check_lengths(layer, agreement.inputs(layer))
    agreement.check_causal(layer, agreement.inputs(layer))


@pytest.mark.parametrize("make", LAYERS)
def test_two_directions_add(make: type[Layer]) -> None:
    both = agreement.jittered(make(bidirectional=True))
    there, back = make().double(), make().double()
    weights = both.state_dict()
    there.load_state_dict({k: v for k, v in weights.items() if not k.startswith("other.")})
    back.load_state_dict({k.removeprefix("other."): v for k, v in weights.items() if k.startswith("other.")})
    agreement.check_two_directions(both, there, back, agreement.inputs(both))
    agreement.check_lengths(both, agreement.inputs(both))
    for call in (both.linearise, lambda x: both.step(x[:, 0])):
        with pytest.raises(ValueError, match="bidirectional"):
            call(agreement.inputs(both))


@pytest.mark.parametrize("make", LAYERS[::2])
def test_transforms_and_precision(make: type[Layer]) -> None:
    layer = agreement.jittered(make())
    agreement.check_transforms(layer, agreement.inputs(layer))
    agreement.check_precision(layer, agreement.inputs(layer))
    agreement.check_survives_init(layer)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gated_is_the_output_times_silu(bidirectional: bool) -> None:
    layer = agreement.jittered(S6(3, 4, bidirectional=bidirectional))
    x, z = agreement.inputs(layer).requires_grad_(), agreement.inputs(layer).requires_grad_()
    leaves = [x, z, *layer.parameters()]
    lengths = torch.tensor([13, 1, 6])
    for state in (None,) if bidirectional else (None, agreement.reached(layer, 3)):
        for given in (None, lengths):
            got, end = layer.gated(x, z, state, given)
            y, want_end = layer(x, state, given)
            want = y * F.silu(z)
            assert_close([got, end], [want, want_end])
            assert_close(*(list(torch.autograd.grad(agreement.loss(t, None), leaves)) for t in (got, want)))
    assert layer.gated(x[:, :0], z[:, :0])[0].shape == (3, 0, 3)
    half = layer.float().gated(x.bfloat16(), z.bfloat16())[0]
    assert half.dtype == torch.bfloat16
    assert_close(half, layer.double().gated(x.bfloat16().double(), z.bfloat16().double())[0], dtype=torch.bfloat16)


def test_gate_beyond_the_length_is_not_read() -> None:
    layer = agreement.jittered(S6(3, 4))
    x, z = agreement.inputs(layer), agreement.inputs(layer)
    want, _ = layer.gated(x, z, None, torch.tensor([13, 1, 6]))
    z[1, 1:], z[2, 6:] = torch.nan, torch.nan
    assert torch.equal(layer.gated(x, z, None, torch.tensor([13, 1, 6]))[0], want)


def test_constant_selection_is_the_time_invariant_kernel() -> None:
    """With B, C, dt held constant, y = sum_l K_l x_{t-l} + D x_t and K_l = sum_n C_n exp(l dt A_n) dt B_n."""
    layer = S6(2, 4, dt_rank=1).double()
    n, l = 4, 30
    steady = torch.tensor([1.0, 0.0], dtype=F64)  # channel 0 is a constant that B and C are read from; 1 is the signal
    with torch.no_grad():
        layer.x_proj.zero_()
        layer.x_proj[1:, 0] = torch.randn(2 * n, dtype=F64)
    x = steady + torch.randn(1, l, 1, dtype=F64) * (1 - steady)  # (1, l, 2)
    B, C = layer.x_proj[1 : 1 + n, 0], layer.x_proj[1 + n :, 0]
    dt = F.softplus(layer.dt_bias[1])
    lag = torch.arange(l, dtype=F64)[:, None]
    kernel = (C * torch.exp(-lag * dt * torch.arange(1, n + 1)) * dt * B).sum(-1)
    u = x[0, :, 1]
    want = torch.stack([(kernel[: t + 1].flip(0) * u[: t + 1]).sum() for t in range(l)]) + u
    assert_close(layer(x)[0][0, :, 1], want)


def test_initial_values_are_mambas() -> None:
    layer = S6(320, 16)
    assert layer.dt_rank == 20
    assert S6(33).dt_rank == 3
    assert_close(layer.A_log, torch.arange(1, 17).log().expand(320, 16))
    assert bool((layer.D == 1).all())
    dt = F.softplus(layer.dt_bias)
    assert bool(((dt > 0.999e-3) & (dt < 0.1001)).all())  # the bias is rounded to float32
    assert abs(dt.log().mean().item() - math.log(0.01)) < 0.2  # log-uniform: the median is sqrt(1e-3 * 0.1)
    assert layer.dt_proj.abs().max().item() <= 20**-0.5
    floor = S6(64, dt_min=1e-6, dt_max=1e-2, dt_floor=1e-4)
    assert F.softplus(floor.dt_bias).min().item() > 0.999e-4
    other = S6(2, 3, A=torch.tensor([-0.5, -1.0, -7.0]))
    assert_close(-torch.exp(other.A_log), torch.tensor([-0.5, -1.0, -7.0]).expand(2, 3))


def test_scalar_initial_values() -> None:
    layer = ScalarS6(50, 4, abscissa=0.1)
    assert bool((layer.A[:, 0] == 0.1).all())
    assert layer.A.max().item() <= 0.1 + 1e-7
    assert layer.A[:, 1:].min().item() < -8
    fixed = ScalarS6(5, 4, abscissa=-0.3, fixed_A=True)
    assert "A" not in dict(fixed.named_parameters())
    assert torch.equal(fixed.state_dict()["A"], torch.full((5, 4), -0.3))
    fixed = fixed.double()
    x = agreement.inputs(fixed, 2, 5)
    with torch.no_grad():
        assert_close(fixed(x)[0], by_hand(fixed, x))


def test_optimiser_groups() -> None:
    assert agreement.undecayed(S6(3)) == {"A_log", "D", "dt_bias"}
    assert "other.A_log" in agreement.undecayed(S6(3, bidirectional=True))
    assert agreement.undecayed(ScalarS6(3)) == set()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_parameters_stay_finite(size: float) -> None:
    """Any parameter value: decays in [0, 1], no NaN in outputs or gradients of the state."""
    layer = S6(3, 4)
    with torch.no_grad():
        for p in (layer.A_log, layer.dt_bias):
            p.fill_(size)
    x = torch.randn(2, 9, 3)
    lam = layer.linearise(x).A.lam
    assert bool(((lam >= 0) & (lam <= 1)).all())
    y, _ = layer(x, None, torch.tensor([9, 4]))
    assert bool(torch.isfinite(y).all())
    assert_close(agreement.stepwise(layer, x[:1])[0], y[:1])
    slopes = torch.autograd.grad(y.sum(), list(layer.parameters()))
    assert all(bool(torch.isfinite(g).all()) for g in slopes)


def test_frozen_keeps_values_and_input_gradients() -> None:
    layer = S6(3, 4).double()
    x = agreement.inputs(layer).requires_grad_()
    want = layer(x)[0]
    slope = torch.autograd.grad(want.sin().sum(), x)[0]
    with layer.frozen():
        got = layer(x)[0]
        assert_close([got, torch.autograd.grad(got.sin().sum(), x)[0]], [want, slope])
        assert_close(agreement.stepwise(layer, x)[0], want)


def test_mamba_mixer_of_hugging_face() -> None:
    """in_proj, our convolution and our gated S6, out_proj: the same numbers as MambaMixer with the same weights."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="needs resolvent[parity]")
    config = pytest.importorskip("transformers").MambaConfig(
        hidden_size=8, state_size=4, num_hidden_layers=1, expand=2, vocab_size=11, use_mambapy=False
    )
    mixer = mamba.MambaMixer(config, layer_idx=0).eval()
    conv, ssm = ShortConv(16, 4), S6(16, 4, dt_rank=mixer.time_step_rank)
    pairs = [
        (conv.weight, mixer.conv1d.weight),
        (conv.bias, mixer.conv1d.bias),
        (ssm.x_proj, mixer.x_proj.weight),
        (ssm.dt_proj, mixer.dt_proj.weight),
        (ssm.dt_bias, mixer.dt_proj.bias),
        (ssm.A_log, mixer.A_log),
        (ssm.D, mixer.D),
    ]
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.copy_(theirs.reshape(mine.shape))
    x = torch.randn(2, 19, 8, requires_grad=True)
    inside, gate = mixer.in_proj(x).chunk(2, -1)
    got = mixer.out_proj(ssm.gated(F.silu(conv(inside)[0]), gate)[0])
    want = mixer(x)
    assert_close(got, want)
    weight = torch.randn_like(want)
    mine = torch.autograd.grad((got * weight).sum(), [x, *(p for p, _ in pairs)])
    theirs = torch.autograd.grad((want * weight).sum(), [x, *(p for _, p in pairs)])
    assert_close([g.reshape(-1) for g in mine], [g.reshape(-1) for g in theirs], gradient=True)


def test_bad_input() -> None:
    wrongs = [{"d_state": 0}, {"dt_rank": 0}, {"dt_rank": "best"}, {"dt_min": 0.2}, {"dt_floor": 0.0}, {"A": "hippo"}]
    wrongs += [{"A": torch.ones(16)}, {"A": -torch.ones(3)}]
    for wrong in wrongs:
        with pytest.raises((ValueError, TypeError), match="S6"):
            S6(5, **wrong)
    layer = S6(3, 4)
    with pytest.raises(ValueError, match="gate z"):
        layer.gated(torch.zeros(2, 5, 3), torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match="state"):
        layer.gated(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3), torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="state"):
        S6(3, 4, bidirectional=True).gated(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3), torch.zeros(2, 3, 4))
