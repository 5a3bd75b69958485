"""Hawk's recurrent block against Hugging Face's RecurrentGemma with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.blocks import Hawk

D, E, HEADS = 8, 12, 3


def theirs_and_ours() -> tuple[Any, Hawk]:
    pytest.importorskip("transformers", reason="RecurrentGemma comes with transformers (parity extra)")
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = RecurrentGemmaConfig(hidden_size=D, lru_width=E, num_attention_heads=HEADS, conv1d_width=4)
    theirs = RecurrentGemmaRecurrentBlock(config, layer_idx=0)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(0.5 * torch.randn_like(p))
    ours = Hawk(D, inner=E, heads=HEADS)
    with torch.no_grad():
        for source, target in pairs(theirs, ours):
            target.copy_(source.reshape(target.shape))
    return theirs, ours


def pairs(theirs: Any, ours: Hawk) -> list[tuple[Tensor, Tensor]]:
    rg = theirs.rg_lru
    return [
        (theirs.linear_y.weight, ours.gate.weight),
        (theirs.linear_y.bias, ours.gate.bias),
        (theirs.linear_x.weight, ours.enter.weight),
        (theirs.linear_x.bias, ours.enter.bias),
        (theirs.conv_1d.weight, ours.conv.weight),
        (theirs.conv_1d.bias, ours.conv.bias),
        (rg.recurrent_gate_weight, ours.rglru.W_a),
        (rg.recurrent_gate_bias, ours.rglru.b_a),
        (rg.input_gate_weight, ours.rglru.W_x),
        (rg.input_gate_bias, ours.rglru.b_x),
        (rg.recurrent_param, ours.rglru.L),
        (theirs.linear_out.weight, ours.leave.weight),
        (theirs.linear_out.bias, ours.leave.bias),
    ]


def test_equals_hugging_faces_recurrent_block() -> None:
    theirs, ours = theirs_and_ours()
    x = torch.randn(2, 9, D, requires_grad=True)
    positions = torch.arange(9)[None].expand(2, -1)
    want = theirs(x, positions, None, use_cache=False)[0]
    got = ours(x)[0]
    assert_close(got, want)
    weights, pick = pairs(theirs, ours), torch.randn(2, 9, D)
    want_grad = torch.autograd.grad((want * pick).sum(), [x, *(w for w, _ in weights)])
    got_grad = torch.autograd.grad((got * pick).sum(), [x, *(w for _, w in weights)])
    for g, w in zip(got_grad, want_grad, strict=True):
        assert_close(g, w.reshape(g.shape), gradient=True)
