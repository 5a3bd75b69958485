"""Blocks keep the contract of layers: chunks, steps, lengths, freezing, compiling, half precision, optimiser groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drive import F64, gradients, in_chunks, in_steps, ready
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._pytree import tree_leaves, tree_map

from helpers import assert_close
from resolvent.blocks import (
    H3,
    MLP,
    AdS,
    Block,
    GatedAttention,
    GatedMLP,
    Hawk,
    Mamba,
    Mixer,
    Pointwise,
    Residual,
    Stack,
)
from resolvent.layers.attention import Attention
from resolvent.layers.contract import Layer
from resolvent.layers.lru import LRU
from resolvent.layers.rglru import RGLRU
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.layers.s5 import S5
from resolvent.layers.s6 import S6

D = 6


def griffin() -> Stack:
    attention = Attention(D, heads=1, kind="local", size=4, position="half-rotary")
    temporal = [Hawk(D, heads=2), attention]
    return Stack([b for t in temporal for b in (rms(t), rms(Pointwise(D, GatedMLP(D))))])


def rms(layer: Layer) -> Residual:
    return Residual(layer, norm="rms")


CAUSAL: dict[str, Callable[[], Block]] = {
    "prenorm-glu-ads": lambda: Residual(LRU(D, 8), mixer=Mixer(D, "glu"), ads=AdS(D)),
    "postnorm-linear": lambda: Residual(S4D(D, 8), mixer=Mixer(D, "linear", final="gelu"), prenorm=False),
    "batchnorm": lambda: Residual(S5(D, 8), mixer=Mixer(D, "half_glu2"), norm="batch", prenorm=False),
    "no-skip": lambda: Residual(S6(D, 4), mixer=Mixer(D, "mlp"), norm="scale", skip=False),
    "mamba": lambda: Mamba(D, 4),
    "mamba-ads": lambda: Mamba(D, 4, ads=AdS(2 * D, "tanh", shift=True)),
    "mamba-rglru": lambda: Mamba(D, ssm=RGLRU(2 * D, heads=2)),
    "hawk": lambda: Hawk(D, inner=8, heads=2),
    "griffin": griffin,
    "h3": lambda: H3(D, 4),
    "h3-heads": lambda: H3(D, 4, head_dim=2),
    "h3-s4": lambda: H3(D, 4, ssm=S4(D, 4)),
    "h3-s5": lambda: H3(D, 4, head_dim=2, ssm=S5(D // 2, 4)),
    "h3-lru": lambda: H3(D, 4, ssm=LRU(D, 4)),
    "mega": lambda: GatedAttention(D, z=4, hidden=8, d_state=4, max_length=6),
    "mega-chunk": lambda: GatedAttention(D, z=4, hidden=8, d_state=4, attention="laplace", chunk=5, prenorm=True),
    "stack": lambda: Stack([Residual(Mamba(D, 4)), Residual(Pointwise(D, MLP(D, 9)), norm="rms")]),
}
BOTH: dict[str, Callable[[], Block]] = {
    "s5": lambda: Residual(S5(D, 8, bidirectional=True), mixer=Mixer(D, "half_glu1"), norm="batch"),
    "mega": lambda: GatedAttention(D, z=4, hidden=8, d_state=4, bidirectional=True),
    "mega-chunk": lambda: GatedAttention(D, z=4, hidden=8, d_state=4, attention="laplace", chunk=5, bidirectional=True),
    "stack": lambda: Stack([Residual(LRU(D, 4)), Residual(LRU(D, 4, bidirectional=True))]),
}
causal = pytest.mark.parametrize("name", CAUSAL)
both = pytest.mark.parametrize("name", BOTH)
each = pytest.mark.parametrize("make", [*CAUSAL.values(), *BOTH.values()], ids=[*CAUSAL, *(f"both-{n}" for n in BOTH)])


@causal
def test_chunks_and_steps_equal_the_whole(name: str) -> None:
    block = ready(CAUSAL[name]())
    x = torch.randn(2, 13, D, dtype=F64)
    whole = block(x)
    assert_close(in_chunks(block, x, [1, 4, 0, 8]), whole)
    assert_close(in_steps(block.step, x), whole)


@causal
def test_gradients_of_steps_equal_those_of_the_whole(name: str) -> None:
    block = ready(CAUSAL[name]())
    x = torch.randn(2, 7, D, dtype=F64, requires_grad=True)
    wanted = [x, *block.parameters()]
    whole = gradients(*block(x), wanted)
    assert all(torch.isfinite(g).all() for g in whole)
    assert_close(gradients(*in_steps(block.step, x), wanted), whole)


@each
def test_padded_sequences_equal_short_ones_alone(make: Callable[[], Block]) -> None:
    block = ready(make())
    lengths = torch.tensor([11, 1, 6])
    x = torch.randn(3, 11, D, dtype=F64)
    x[1, 1:], x[2, 6:] = torch.nan, torch.nan
    y, end = block(x, lengths=lengths)
    for i, l in enumerate(lengths.tolist()):
        alone, alone_end = block(x[i : i + 1, :l])
        assert_close(y[i : i + 1, :l], alone)
        assert not y[i, l:].any()
        if not block.bidirectional:
            for got, want in zip(tree_leaves(end), tree_leaves(alone_end), strict=True):
                assert_same_end(got[i : i + 1], want)


def assert_same_end(got: torch.Tensor, want: torch.Tensor) -> None:
    """A cache that grows is right-aligned: what a shorter sequence does not have stands before it, and is not read."""
    if got.shape != want.shape:
        got = got[:, :, got.shape[2] - want.shape[2] :]
    assert_close(got, want) if got.is_floating_point() or got.is_complex() else torch.testing.assert_close(got, want)


@each
def test_frozen_gives_the_same_values_and_no_parameter_gradients(make: Callable[[], Block]) -> None:
    block = ready(make())
    x = torch.randn(2, 9, D, dtype=F64, requires_grad=True)
    y, _ = block(x)
    (want,) = torch.autograd.grad(y.square().sum(), x)
    with block.frozen():
        y_frozen, _ = block(x)
        assert not any(p.requires_grad for p in block.parameters())
        assert_close(torch.autograd.grad(y_frozen.square().sum(), x)[0], want)
    assert_close(y_frozen, y)
    assert all(p.requires_grad for p in block.parameters())


@both
def test_both_directions_refuse_to_stream(name: str) -> None:
    block = ready(BOTH[name]())
    x = torch.randn(2, 5, D, dtype=F64)
    y, state = block(x)
    assert state is None
    with pytest.raises(ValueError, match="bidirectional"):
        block.step(x[:, 0])
    with pytest.raises(ValueError, match="bidirectional"):
        block.initial_state(2)
    with pytest.raises(ValueError, match="bidirectional"):
        block(x, state={})
    future = x.clone()
    future[:, -1] += torch.randn(D, dtype=F64)
    assert (block(future)[0] - y)[:, 0].abs().max() > 1e-8  # the future reaches the first step


@pytest.mark.parametrize("name", ["prenorm-glu-ads", "mamba", "mega-chunk"])
def test_compiles_in_one_graph(name: str) -> None:
    block = ready(CAUSAL[name]())
    x = torch.randn(2, 9, D, dtype=F64, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x)[0], block(x)[0])
    wanted = [x, *block.parameters()]
    assert_close(gradients(*compiled(x), wanted), gradients(*block(x), wanted))


class Output(nn.Module):
    """A block whose state nobody keeps."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)[0]


@pytest.mark.parametrize(
    "make", [lambda: Residual(S4D(D)), lambda: Stack([Residual(S5(D))]), lambda: H3(D, head_dim=2)]
)
def test_compiled_graphs_hold_no_complex_number(make: Callable[[], Block]) -> None:
    found = []

    def look(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        found.extend(
            t for n in graph.graph.nodes for t in tree_leaves(n.meta.get("val")) if isinstance(t, torch.Tensor)
        )
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(Output(make()), backend=aot_autograd(fw_compiler=look, bw_compiler=look), fullgraph=True)
    compiled(torch.randn(2, 70, D, requires_grad=True)).square().sum().backward()
    assert len(found) > 10
    assert not any(t.is_complex() for t in found)


@each
def test_float32_bfloat16_and_autocast(make: Callable[[], Block]) -> None:
    block = ready(make())
    x = torch.randn(2, 12, D, dtype=F64)
    want = block(x)[0]
    block = block.float()
    assert_close(block(x.float())[0], want)
    half = block(x.bfloat16())[0]
    assert half.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = block(x.float())[0]
    assert mixed.dtype == torch.float32
    assert_close(half, want, dtype=torch.bfloat16)
    assert_close(mixed, want, dtype=torch.bfloat16)  # its products are bfloat16


@each
def test_groups_hold_every_parameter_once(make: Callable[[], Block]) -> None:
    block = make()
    held = [id(p) for group in block.optim_groups() for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in block.parameters())


def test_groups_keep_what_layers_ask_for() -> None:
    mamba = Mamba(D, 4)
    (undecayed,) = [g for g in Stack([Residual(mamba)]).optim_groups() if g.get("weight_decay") == 0.0]
    assert any(p is mamba.ssm.A_log for p in undecayed["params"])


def test_forward_hooks_see_the_layer_inside_a_fused_block() -> None:
    block = ready(Mamba(D, 4))
    x = torch.randn(2, 7, D, dtype=F64)
    want, seen = block(x)[0], []
    block.ssm.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    assert_close(block(x)[0], want)
    assert seen
    assert seen[0].shape == (2, 7, 2 * D)


def test_published_starts_survive_an_outer_init() -> None:
    block = Residual(GatedAttention(D, z=4, hidden=8, d_state=4), norm="batch")
    before = {name: p.clone() for name, p in block.named_parameters()}

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.LayerNorm | nn.BatchNorm1d):
            nn.init.constant_(module.weight, 7.0)

    block.apply(init)
    for name, p in block.named_parameters():
        assert torch.equal(p, before[name]), name


def test_empty_sequence_and_batch_of_one() -> None:
    block = ready(CAUSAL["stack"]())
    state = block(torch.randn(1, 3, D, dtype=F64))[1]
    y, same = block(torch.empty(1, 0, D, dtype=F64), state)
    assert y.shape == (1, 0, D)
    tree_map(torch.testing.assert_close, same, state)


def test_a_state_of_another_block_is_refused() -> None:
    mamba, hawk = ready(Mamba(D, 4)), ready(Hawk(D))
    x = torch.randn(2, 3, D, dtype=F64)
    with pytest.raises(ValueError, match="entries"):
        hawk(x, mamba(x)[1])
    with pytest.raises(ValueError, match="batch"):
        mamba(x, mamba(x[:1])[1])


@pytest.mark.parametrize("layer", [S4D, S5, S6])
def test_a_block_that_stands_twice_has_a_state_in_each_place(layer: Callable[[int], Layer]) -> None:
    shared = Residual(layer(D))
    stack = ready(Stack([shared, shared]))
    x = torch.randn(2, 70, D, dtype=F64)
    whole = stack(x)
    assert list(whole[1]) == list(stack.state_spec(2)) == ["blocks.0", "blocks.1"]
    assert_close(in_chunks(stack, x, [1, 40, 29]), whole)
    assert_close(in_steps(stack.step, x), whole)
    grouped = [p for group in stack.optim_groups() for p in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, shared.parameters()))


def test_stack_checks_its_blocks() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Stack([])
    with pytest.raises(ValueError, match="same width"):
        Stack([Residual(LRU(4)), Residual(LRU(5))])
