"""A program in plain torch operations: the reference for the fast forms, differentiable to any order.

Sequence layers and user modules are called; everything around them is written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.blocks.norm import divide_by_rms
from resolvent.blocks.pool import pool
from resolvent.layers.checks import padding_mask
from resolvent.lowering import program as p
from resolvent.lowering.program import Chain, Node, Program

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "relu": F.relu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "none": lambda x: x, "ramp": lambda x: x.clamp(0, 1),
}  # fmt: skip


def run(program: Program, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The described module's output for x: logits, or features (b, l, d) of a block or layer."""
    return follow(program.chain, x, lengths)


def follow(chain: Chain, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    for node in chain:
        x = _RUN[type(node)](node, x, lengths)
    return x


def _linear(node: p.Linear, x: Tensor, lengths: Tensor | None) -> Tensor:
    W, b = node.read(node.module)
    return F.linear(x, W.to(x.dtype), None if b is None else b.to(x.dtype))


def _activation(node: p.Activation, x: Tensor, lengths: Tensor | None) -> Tensor:
    return CURVES[node.kind](x)


def _dropout(node: p.Dropout, x: Tensor, lengths: Tensor | None) -> Tensor:
    dropped: Tensor = node.module(x)
    return dropped


def _norm(node: p.Norm, x: Tensor, lengths: Tensor | None) -> Tensor:
    own = node.module
    if node.kind == "batch":  # which has running statistics
        found: Tensor = own(x, lengths)
        return found
    if node.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
        return divide_by_rms(x, own.eps) * own.weight + own.bias
    scale = 1 + own.scale if node.kind == "rms" else own.scale
    return divide_by_rms(x, own.eps) * scale


def _scale(node: p.Scale, x: Tensor, lengths: Tensor | None) -> Tensor:
    y = follow(node.of, x, lengths) * follow(node.by, x, lengths)
    return follow(node.then, y if node.plus is None else y + follow(node.plus, x, lengths))


def _factor(node: p.Factor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return x * node.value.to(x.dtype)


def _inside(node: p.Bounded | p.Mix, x: Tensor, lengths: Tensor | None) -> Tensor:
    return follow(node.inside, x, lengths)


def _layer(node: Node, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The sequence layer itself."""
    y: Tensor = node.module(x, None, lengths)[0]
    return y


def _gated_attention(node: p.GatedAttention, x: Tensor, lengths: Tensor | None) -> Tensor:
    own = node.module
    h = follow(node.norm, x, lengths) if node.prenorm else x
    average = F.silu(follow(node.scale, follow(node.average, h, lengths)))
    base = _linear(node.base, follow(node.dropout, average), None)
    u, z, r, hx = base.split([own.d_model, own.z, own.hidden, own.d_model], -1)
    o, _ = own._attend(F.silu(z), F.silu(_linear(node.value, h, None)), _start(own, x), lengths)
    new = follow(node.dropout, F.silu(hx + _linear(node.leave, F.silu(r) * o, None)))
    y = x + torch.sigmoid(u) * (new - x)
    return y if node.prenorm else follow(node.norm, y, lengths)


def _start(own: Any, x: Tensor) -> Any:
    return None if own.bidirectional else own._empty_cache(x.shape[0])


def _keyed_filter(node: p.KeyedFilter, x: Tensor, lengths: Tensor | None) -> Tensor:
    heads: Callable[[Tensor], Tensor] = lambda t: t.unflatten(-1, (-1, node.module.head_dim))  # noqa: E731
    (b, l, _), width = x.shape, node.module.head_dim
    k, v = _linear(node.key, x, None), _linear(node.value, x, None)
    k = follow((node.shift,), k, lengths) + node.module.shift_D * k
    outer = torch.einsum("blhk,blhv->bkvlh", heads(k), heads(v)).reshape(b * width**2, l, -1)
    each = None if lengths is None else lengths.repeat_interleave(width**2)
    s = follow(node.ssm, outer, each).view(b, width, width, l, -1)
    y = torch.einsum("blhk,bkvlh->blhv", heads(_linear(node.query, x, None)), s).flatten(-2)
    return _linear(node.out, follow(node.scale, y), None)


def _skip(node: p.Skip, x: Tensor, lengths: Tensor | None) -> Tensor:
    h = follow(node.branch, follow(node.norm, x, lengths) if node.prenorm else x, lengths)
    return node.end(x, h, lambda y: follow(node.norm, y, lengths))


def _embedding(node: p.Embedding, x: Tensor, lengths: Tensor | None) -> Tensor:
    return F.embedding(x, node.module.weight)


def _network(node: p.Network, x: Tensor, lengths: Tensor | None) -> Tensor:
    if isinstance(node.head, p.Match):
        each = None if lengths is None else lengths.flatten()
        pooled = _pool(node.pool, follow(node.tower, x.flatten(0, 1), each), each).unflatten(0, (-1, 2))
        e1, e2 = pooled.unbind(1)  # (b, d) each
        hidden = _linear(node.head.hidden, torch.cat([e1, e2, e1 * e2, e1 - e2], -1), None)
        return _linear(node.head.out, F.gelu(hidden), None)
    features = follow(node.tower, x, lengths)
    y = follow(node.head.out, follow(node.head.hidden, _pool(node.pool, features, lengths)))
    mask = padding_mask(features, lengths) if node.pool.kind == "none" else None
    return y if mask is None else y.masked_fill(mask, 0)


def _pool(node: p.Pool, x: Tensor, lengths: Tensor | None) -> Tensor:
    if node.kind == "state":
        kept: Tensor = node.module(x, lengths)
        return kept
    return pool(x, lengths, node.kind)


def _opaque(node: p.Opaque, x: Tensor, lengths: Tensor | None) -> Tensor:
    found: Any
    if node.call == "map":
        found = node.module(x)
    elif node.call == "norm":
        found = node.module(x, lengths)
    else:
        found, _ = node.module(x, None, lengths)
    made: Tensor = found
    return made


_RUN: dict[type[Node], Callable[[Any, Tensor, Tensor | None], Tensor]] = {
    p.Linear: _linear, p.Activation: _activation, p.Dropout: _dropout, p.Norm: _norm, p.Scale: _scale,
    p.Factor: _factor, p.Bounded: _inside, p.Mix: _inside, p.Filter: _layer, p.Recurrence: _layer, p.Attention: _layer,
    p.GatedAttention: _gated_attention, p.KeyedFilter: _keyed_filter, p.Skip: _skip, p.Embedding: _embedding,
    p.Network: _network, p.Opaque: _opaque,
}  # fmt: skip
