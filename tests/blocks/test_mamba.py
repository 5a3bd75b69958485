"""The Mamba block against Hugging Face's mixer with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.blocks import Mamba
from resolvent.layers import RGLRU

D, N = 16, 8


def theirs_and_ours(dtype: torch.dtype) -> tuple[Any, Mamba]:
    pytest.importorskip("transformers", reason="the reference Mamba block comes with transformers (parity extra)")
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = MambaConfig(hidden_size=D, state_size=N, expand=2, conv_kernel=4, use_mambapy=False)
    theirs = MambaMixer(config, layer_idx=0).to(dtype)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return theirs, with_weights(theirs, Mamba(D, N).to(dtype))


def pairs(theirs: Any, ours: Mamba) -> list[tuple[Tensor, Tensor]]:
    return [
        (theirs.in_proj.weight, ours.in_proj.weight),
        (theirs.conv1d.weight, ours.conv.weight),
        (theirs.conv1d.bias, ours.conv.bias),
        (theirs.x_proj.weight, ours.ssm.x_proj),
        (theirs.dt_proj.weight, ours.ssm.dt_proj),
        (theirs.dt_proj.bias, ours.ssm.dt_bias),
        (theirs.A_log, ours.ssm.A_log),
        (theirs.D, ours.ssm.D),
        (theirs.out_proj.weight, ours.out_proj.weight),
    ]


def with_weights(theirs: Any, ours: Mamba) -> Mamba:
    with torch.no_grad():
        for source, target in pairs(theirs, ours):
            target.copy_(source.reshape(target.shape))
    return ours


# the peer keeps parts of its scan in float32 whatever it is given, so it is the coarser one of the two in float64
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_hugging_faces_mixer(dtype: torch.dtype) -> None:
    theirs, ours = theirs_and_ours(dtype)
    x = torch.randn(2, 11, D, dtype=dtype, requires_grad=True)
    pick = torch.randn(2, 11, D, dtype=dtype)
    want, got = theirs(x), ours(x)[0]
    assert_close(got, want, dtype=torch.float32)
    weights = pairs(theirs, ours)
    want_grad = torch.autograd.grad((want * pick).sum(), [x, *(w for w, _ in weights)])
    got_grad = torch.autograd.grad((got * pick).sum(), [x, *(w for _, w in weights)])
    for g, w in zip(got_grad, want_grad, strict=True):
        assert_close(g, w.reshape(g.shape), dtype=torch.float32, gradient=True)


def test_inner_width_and_weights() -> None:
    mamba = Mamba(D, N, expand=3, width=2)
    assert mamba.ssm.d_model == 3 * D
    assert mamba.conv.width == 2
    with pytest.raises(ValueError, match="expand"):
        Mamba(D, N, expand=0)


def test_another_recurrence_in_the_place_of_s6() -> None:
    """RG-LRU between the convolution and the gate, both written out; and the same step by step."""
    block = Mamba(D, ssm=RGLRU(2 * D)).double()
    x = torch.randn(2, 9, D, dtype=torch.float64)
    h, z = block.in_proj(x).chunk(2, -1)
    past = torch.nn.functional.pad(h, (0, 0, 3, 0))
    conv = sum(past[:, j : j + 9] * block.conv.weight.reshape(2 * D, 4)[:, j] for j in range(4))
    u = torch.nn.functional.silu(conv + block.conv.bias)
    y, _ = RGLRU.forward(block.ssm, u)
    assert_close(block(x)[0], block.out_proj(y * torch.nn.functional.silu(z)))
    state, outputs = block.initial_state(2), []
    for t in range(9):
        out, state = block.step(x[:, t], state)
        outputs.append(out)
    assert_close(torch.stack(outputs, 1), block(x)[0])
    with pytest.raises(ValueError, match="of 32 channels, got one of 16"):
        Mamba(D, ssm=RGLRU(D))
