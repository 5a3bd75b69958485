"""H3 against its products written out."""

from __future__ import annotations

import pytest
import torch
from drive import F64, ready

from helpers import assert_close
from resolvent.blocks import H3

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
