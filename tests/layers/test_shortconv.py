"""ShortConv against torch's own convolution, a dense shift register and itself."""

from __future__ import annotations

import agreement
import pytest
import torch

from helpers import assert_close
from resolvent.layers.shortconv import ShortConv

F64 = torch.float64


@pytest.mark.parametrize(("width", "bias"), [(1, False), (2, True), (4, True), (7, False), (33, True)])
@pytest.mark.parametrize("l", [1, 3, 20])
def test_equals_conv1d(width: int, bias: bool, l: int) -> None:
    layer = agreement.jittered(ShortConv(5, width, bias))
    x = agreement.inputs(layer, 2, l).requires_grad_()
    conv = torch.nn.Conv1d(5, 5, width, groups=5, padding=width - 1, bias=bias, dtype=F64)
    conv.weight.data.copy_(layer.weight[:, None])
    if bias:
        conv.bias.data.copy_(layer.bias)
    want = conv(x.mT)[..., :l].mT
    got, _ = layer(x)
    assert_close(got, want)
    weight = torch.randn_like(got)
    mine = torch.autograd.grad((got * weight).sum(), [x, *layer.parameters()])
    theirs = torch.autograd.grad((want * weight).sum(), [x, *conv.parameters()])
    assert_close(mine[0], theirs[0])
    assert_close(mine[1], theirs[1][:, 0])
    if bias:
        assert_close(mine[2], theirs[2])


@pytest.mark.parametrize("width", [1, 4, 20])
def test_streams_from_any_cut(width: int) -> None:
    agreement.check_cuts(agreement.jittered(ShortConv(3, width)))


def test_state_is_the_last_inputs() -> None:
    layer = ShortConv(2, 4).double()
    x = agreement.inputs(layer, 2, 6)
    _, state = layer(x, None, torch.tensor([6, 2]))
    assert torch.equal(state[0], x[0, 3:])
    assert torch.equal(state[1], torch.cat([torch.zeros(1, 2), x[1, :2]]))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_system_is_the_shift_register(width: int) -> None:
    layer = agreement.jittered(ShortConv(3, width))
    system = layer.system()
    assert system.bank == (3,)
    x = agreement.inputs(layer)
    assert_close(system.block_diagonal().simulate(x)[0] + layer.bias, layer(x)[0])
    assert_close(torch.linalg.matrix_power(system.A.dense(), width), torch.zeros(3, width, width, dtype=F64))


def test_two_directions_add_with_one_bias() -> None:
    both = agreement.jittered(ShortConv(3, 4, bidirectional=True))
    there, back = ShortConv(3, 4).double(), ShortConv(3, 4, bias=False).double()
    there.load_state_dict({"weight": both.weight, "bias": both.bias})
    back.load_state_dict({"weight": both.weight_back})
    agreement.check_two_directions(both, there, back, agreement.inputs(both))
    agreement.check_lengths(both, agreement.inputs(both))
    with pytest.raises(ValueError, match="bidirectional"):
        both.system()


def test_transforms_and_precision() -> None:
    layer = agreement.jittered(ShortConv(4))
    agreement.check_transforms(layer, agreement.inputs(layer))
    agreement.check_precision(layer, agreement.inputs(layer))


def test_initial_taps() -> None:
    layer = ShortConv(4000, 4)
    assert 0.49 < layer.weight.abs().max().item() <= 0.5
    assert abs(ShortConv(4000, 4, std=0.05).weight.std().item() - 0.05) < 2e-3
    agreement.check_survives_init(layer)


def test_frozen_gives_input_gradients_only() -> None:
    layer = ShortConv(3).double()
    x = agreement.inputs(layer).requires_grad_()
    want = torch.autograd.grad(layer(x)[0].sin().sum(), x)[0]
    with layer.frozen():
        y = layer(x)[0]
        assert_close(torch.autograd.grad(y.sin().sum(), x)[0], want)
        assert not layer.weight.requires_grad


def test_bad_input() -> None:
    for wrong in ({"width": 0}, {"width": 2.0}, {"std": -1.0}, {"std": float("nan")}):
        with pytest.raises((ValueError, TypeError), match="ShortConv"):
            ShortConv(3, **wrong)
    layer = ShortConv(3)
    with pytest.raises(ValueError, match="state"):
        layer(torch.zeros(2, 5, 3), torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="bidirectional"):
        ShortConv(3, bidirectional=True).step(torch.zeros(2, 3))


def test_empty_sequence() -> None:
    layer = ShortConv(3)
    y, state = layer(torch.zeros(2, 0, 3))
    assert y.shape == (2, 0, 3)
    assert torch.equal(state, layer.initial_state(2))
