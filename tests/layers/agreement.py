"""What a layer must agree with itself on; each layer's own truths stand in its test file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.utils._pytree import tree_flatten, tree_map

from helpers import assert_close, random_cuts
from resolvent.layers.contract import Layer
from resolvent.layers.states import reverse

F64 = torch.float64


def inputs(layer: Layer, b: int = 3, l: int = 13) -> Tensor:
    return torch.randn(b, l, layer.d_model, dtype=F64)


def jittered(layer: Layer, scale: float = 0.1) -> Layer:
    """float64, and moved off special initial values: a zero bias hides a missing one."""
    layer = layer.double()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p) * scale)
    return layer


def stepwise(layer: Layer, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    outputs = []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def in_pieces(layer: Layer, x: Tensor, cuts: list[int], state: Any = None) -> tuple[Tensor, Any]:
    outputs = []
    for piece in x.split(cuts, 1):
        y, state = layer(piece, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def reached(layer: Layer, b: int, l: int = 4) -> Any:
    """A state that the layer came to by itself, as leaves of a new graph."""
    with torch.no_grad():
        state = layer(inputs(layer, b, l))[1]
    return tree_map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), state)


def check_cuts(layer: Layer) -> None:
    """Streams of one, two and many steps, padding, causality."""
    for l in (1, 2, 13):
        check_streams(layer, inputs(layer, 2, l))
    check_lengths(layer, inputs(layer))
    check_causal(layer, inputs(layer))


def check_long_stream(layer: Layer) -> None:
    """1e5 steps of float32, one by one, against float64."""
    x = torch.randn(1, 100_000, layer.d_model)
    with torch.no_grad(), layer.frozen():
        got = stepwise(layer, x)[0]
    with torch.no_grad():
        want = layer.double()(x.double())[0]
    assert_close(got, want, tolerance=1e-3)  # 1e5 roundings of a memory of a thousand steps


def numbers(tree: Any) -> list[Tensor]:
    """The tensors that gradients flow through; positions and flags are left out."""
    return [t for t in tree_flatten(tree)[0] if isinstance(t, Tensor) and t.is_floating_point()]


def loss(y: Tensor, state: Any) -> Tensor:
    """Curved, and different for every entry of the output and of the final state."""
    parts = [y, *numbers(state)]
    return sum(
        ((p * torch.linspace(0.3, 1.7, p.numel(), dtype=p.dtype).view_as(p)).sin().sum() for p in parts),
        torch.zeros(()),
    )


def derivatives(layer: Layer, run: Any, x: Tensor, state: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
    """Outputs, first gradients and a Hessian-vector product in inputs, initial state and parameters."""
    x = x.detach().clone().requires_grad_()
    leaves = [x, *numbers(state), *layer.parameters()]
    out = run(x, state)
    first = torch.autograd.grad(loss(*out), leaves, create_graph=True, materialize_grads=True)
    along = sum((g * torch.linspace(1, 2, g.numel(), dtype=g.dtype).view_as(g)).sum() for g in first)
    second = torch.autograd.grad(along, leaves, materialize_grads=True)
    return out, list(first), list(second)


def check_streams(layer: Layer, x: Tensor) -> None:
    """Whole = random pieces = step by step, from rest and from a state, with first and second gradients."""
    for state in (None, reached(layer, x.shape[0])):
        whole = derivatives(layer, layer, x, state)
        assert_close(derivatives(layer, lambda a, s: stepwise(layer, a, s), x, state), whole)
        cuts = random_cuts(x.shape[1], 4, torch.Generator().manual_seed(x.shape[1]))
        assert_close(derivatives(layer, lambda a, s, c=cuts: in_pieces(layer, a, c, s), x, state), whole)


def check_causal(layer: Layer, x: Tensor) -> None:
    later = x.clone()
    later[:, 7:] += 1
    assert_close(layer(later)[0][:, :7], layer(x)[0][:, :7])
    assert (layer(later)[0][:, 7:] - layer(x)[0][:, 7:]).abs().amax() > 1e-6


def check_lengths(layer: Layer, x: Tensor) -> None:
    """A padded batch equals each sequence alone: outputs, final state, gradients; NaN in the padding stays there."""
    b, l = x.shape[:2]
    lengths = torch.tensor([l, 1, l // 2 + 1, 2][:b])
    x = x.clone()
    for i, n in enumerate(lengths.tolist()):
        x[i, n:] = torch.nan
    x.requires_grad_()
    y, state = layer(x, None, lengths)
    (slope,) = torch.autograd.grad(loss(y, None), x)
    weights = torch.linspace(0.3, 1.7, y.numel(), dtype=y.dtype).view_as(y)
    follow = torch.randn(b, 3, layer.d_model, dtype=x.dtype)
    after = None if layer.bidirectional else layer(follow, state)[0]
    for i, n in enumerate(lengths.tolist()):
        alone = x[i : i + 1, :n].detach().requires_grad_()
        y_i, state_i = layer(alone)
        assert_close(y[i : i + 1, :n], y_i)
        assert bool((y[i, n:] == 0).all())
        (slope_i,) = torch.autograd.grad((y_i * weights[i : i + 1, :n]).sin().sum(), alone)
        assert_close(slope[i : i + 1, :n], slope_i)
        assert bool((slope[i, n:] == 0).all())
        if after is not None:  # the state handed on is that of the sequence alone
            assert_close(after[i : i + 1], layer(follow[i : i + 1], state_i)[0])


def check_two_directions(both: Layer, there: Layer, back: Layer, x: Tensor) -> None:
    """y = (one layer) + (another layer on the reversed sequence, turned back), padding included."""
    lengths = torch.tensor([x.shape[1], 1, 5][: x.shape[0]])
    for given in (None, lengths):
        want = there(x, None, given)[0] + reverse(back(reverse(x, given), None, given)[0], given)
        assert_close(both(x, None, given)[0], want)


def check_transforms(layer: Layer, x: Tensor) -> None:
    """torch.compile in one graph, vmap, jvp against reverse mode."""
    many = torch.stack([x, x.flip(0) * 0.5])
    assert_close(vmap(lambda one: layer(one)[0])(many), torch.stack([layer(one)[0] for one in many]))
    given = {name: p.detach() for name, p in layer.named_parameters()}
    along = (torch.randn_like(x), {name: torch.randn_like(p) for name, p in given.items()})
    tangent = jvp(lambda a, p: functional_call(layer, p, (a,))[0], (x, given), along)[1]
    leaves = [x.clone().requires_grad_(), *layer.parameters()]
    y = layer(leaves[0])[0]
    weight = torch.randn_like(y)
    slopes = torch.autograd.grad((y * weight).sum(), leaves, materialize_grads=True)
    want = sum((g * t).sum() for g, t in zip(slopes, [along[0], *along[1].values()], strict=True))
    assert_close((tangent * weight).sum(), want)
    check_compiles(layer, x)


def check_compiles(layer: Layer, x: Tensor) -> None:
    torch._dynamo.reset()
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    lengths = torch.tensor([x.shape[1], 2, 5][: x.shape[0]])
    for given in (None, lengths):
        slopes = []
        for run in (fast, layer):
            x_in = x.clone().requires_grad_()
            y, end = run(x_in, None, given)
            slopes.append((y, end, *torch.autograd.grad(loss(y, end), [x_in, *layer.parameters()], allow_unused=True)))
        assert_close(*slopes)
    torch._dynamo.reset()


def check_precision(layer: Layer, x: Tensor) -> None:
    """float32 and bf16 against float64 on the same rounded input; a cast to half leaves the parameters in float32."""
    single = layer.float()
    x32, x16 = x.float(), x.bfloat16()
    got32, got16 = single(x32)[0], single.bfloat16()(x16)[0]
    assert got16.dtype == torch.bfloat16
    assert single.dtype == torch.float32
    wide = layer.double()
    assert_close(got32, wide(x32.double())[0], dtype=torch.float32)
    assert_close(got16, wide(x16.double())[0], dtype=torch.bfloat16)


def check_survives_init(layer: Layer) -> None:
    def overwrite(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
            nn.init.zeros_(module.weight)

    before = {name: p.clone() for name, p in layer.named_parameters()}
    nn.Sequential(nn.Linear(2, 2), layer).apply(overwrite)
    assert all(torch.equal(p, before[name]) for name, p in layer.named_parameters())


def undecayed(layer: Layer) -> set[str]:
    """Names of the parameters that take no weight decay; every parameter must be in exactly one group."""
    names = {id(p): name for name, p in layer.named_parameters()}
    groups = layer.optim_groups()
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(names)
    torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    return {names[id(p)] for group in groups if group.get("weight_decay") == 0 for p in group["params"]}
