"""H3 against its products written out."""

from __future__ import annotations

import pytest
import torch
from drive import F64, ready

from helpers import assert_close
from resolvent.blocks import H3
from resolvent.layers import LRU, RGLRU, S4, S4D, S5, Layer

D, N = 6, 4


def test_head_dim_one_is_two_elementwise_products() -> None:
    block = ready(H3(D, N))
    x = torch.randn(2, 11, D, dtype=F64)
    k = block.key(x)
    kv = (block.shift.system().block_diagonal().simulate(k)[0] + block.shift_D * k) * block.value(x)
    s = block.ssm.system().block_diagonal().simulate(kv + 0j)[0].real
    assert_close(block(x)[0], block.out(block.query(x) * s))


def test_heads_sum_over_the_key_axis() -> None:
    p = 3
    block = ready(H3(D, N, head_dim=p))
    x = torch.randn(2, 9, D, dtype=F64)
    k = block.key(x)
    k = block.shift.system().block_diagonal().simulate(k)[0] + block.shift_D * k
    q, v, y = block.query(x), block.value(x), torch.zeros(2, 9, D, dtype=F64)
    for head in range(D // p):
        system = block.ssm.system()
        for i in range(p):
            for j in range(p):
                kv = k[..., head * p + i] * v[..., head * p + j]  # (b, l)
                inputs = torch.zeros(2, 9, D // p, dtype=torch.complex128)
                inputs[..., head] = kv
                s = system.block_diagonal().simulate(inputs)[0].real[..., head]
                y[..., head * p + j] += q[..., head * p + i] * s
    assert_close(block(x)[0], block.out(y))


def test_shift_kernel_is_zero_beyond_its_taps() -> None:
    block = ready(H3(D, N))
    impulse = torch.zeros(1, 3 * N, D, dtype=F64)
    impulse[:, 0] = 1
    response = block.shift(impulse)[0][0]  # (l, d)
    assert (response[:N].abs() > 0).all()
    assert not response[N:].any()


def test_head_dim_must_divide() -> None:
    with pytest.raises(ValueError, match="divide"):
        H3(D, N, head_dim=4)


@pytest.mark.parametrize("kind", [S4, S5, LRU])
def test_other_layers_in_the_place_of_s4d(kind: type[Layer]) -> None:
    """Against dense simulations of the layer's own systems: a bank of them (S4), or one with all channels."""
    block = ready(H3(D, N, ssm=kind(D, N)))  # type: ignore[call-arg]
    x = torch.randn(2, 11, D, dtype=F64)
    k = block.key(x)
    kv = (block.shift.system().block_diagonal().simulate(k)[0] + block.shift_D * k) * block.value(x)
    system = block.ssm.system()
    whole = system.block_diagonal() if kind is S4 else system
    s = whole.simulate(kv + 0j)[0].real
    assert_close(block(x)[0], block.out(block.query(x) * s))


def test_what_cannot_stand_inside_is_refused() -> None:
    for wrong, message in ((S4D(4, N), "of 6 channels, got one of 4"), (S4D(D, N, bidirectional=True), "causal")):
        with pytest.raises(ValueError, match=message):
            H3(D, N, ssm=wrong)
    with pytest.raises(ValueError, match="one tensor as its state"):
        H3(D, N, ssm=RGLRU(D))
    with pytest.raises(TypeError, match="expected a layer"):
        H3(D, N, ssm=torch.nn.Linear(D, D))  # type: ignore[arg-type]
