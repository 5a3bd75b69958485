"""The pointwise parts of residual blocks with channels first: x (d, b, l) -> (d, b, l).

In this layout a map over channels is a matrix product W x and a causal convolution one batched product
(`ops.filter.toeplitz`), so nothing is transposed between the two. Everything is computed in the dtype of x, norms in
float32 at least.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor

from resolvent.blocks.norm import divide_by_rms
from resolvent.lowering import program as p
from resolvent.lowering.eager import CURVES
from resolvent.lowering.program import Chain, Node

NORMS = ("layer", "rms", "scale")


def covers(node: Node) -> TypeGuard[p.Skip]:
    """Whether these functions cover everything that this residual block does around its layer, in its present mode."""
    if not isinstance(node, p.Skip) or node.dropout or not is_norm(node.norm):
        return False
    maps = p.Linear | p.Activation | p.Scale | p.Mix
    return all(isinstance(inner, maps) for inner in p.walk((*node.scale, *node.mixer)))


def is_norm(chain: Chain, kinds: tuple[str, ...] = NORMS) -> bool:
    """Whether a chain is a single norm over the channels, or empty."""
    return not chain or (len(chain) == 1 and isinstance(chain[0], p.Norm) and chain[0].kind in kinds)


def linear(node: p.Linear, x: Tensor) -> Tensor:
    (weight, bias), flat = node.read(node.module), x.flatten(1)
    W = weight.to(x.dtype)
    y = W @ flat if bias is None else torch.addmm(bias.to(x.dtype)[:, None], W, flat)
    return y.view(-1, *x.shape[1:])


def norm(chain: Chain, x: Tensor) -> Tensor:
    """The norm over the channels, axis 0."""
    if not chain:
        return x
    (node,) = chain
    assert isinstance(node, p.Norm)
    own, z = node.module, x.float() if x.element_size() < 4 else x
    if node.kind == "layer":
        var, mean = torch.var_mean(z, 0, correction=0, keepdim=True)
        z = torch.addcmul(_along(own.bias), (z - mean) * torch.rsqrt(var + own.eps), _along(own.weight))
    else:
        scale = 1 + _along(own.scale) if node.kind == "rms" else own.scale
        z = divide_by_rms(z, own.eps, 0) * scale
    return z.to(x.dtype)


def average(h: Tensor, at: int) -> Tensor:
    """The mean over axis `at`, in float32 at least."""
    found: Tensor = _Average.apply(h, at)
    return found


class _Average(torch.autograd.Function):
    """With an expanded view as its gradient, where autograd would materialise it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, at: int) -> Tensor:
        ctx.at, ctx.count, ctx.dtype = at, h.shape[at], h.dtype
        return h.sum(at, dtype=torch.promote_types(h.dtype, torch.float32)) / ctx.count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        sizes = [-1, -1]
        sizes.insert(ctx.at, ctx.count)
        return (gradients[0] / ctx.count).to(ctx.dtype).unsqueeze(ctx.at).expand(sizes), None


def follow(chain: Chain, y: Tensor) -> Tensor:
    """mixer(ads(y)) and the like."""
    for node in chain:
        if isinstance(node, p.Linear):
            y = linear(node, y)
        elif isinstance(node, p.Activation):
            y = CURVES[node.kind](y)
        elif isinstance(node, p.Mix):
            y = follow(node.inside, y)
        else:
            assert isinstance(node, p.Scale)
            y = _scale(node, y)
    return y


def _along(parameter: Tensor) -> Tensor:
    return parameter[:, None, None]


def _scale(node: p.Scale, y: Tensor) -> Tensor:
    match node:
        case p.Scale(
            of=(p.Linear(whole=p.Linear() as whole), *left), by=(p.Linear(whole=p.Linear() as other), *right)
        ) if whole is other:
            first, second = linear(whole, y).chunk(2, 0)  # halves of one product
            z = follow(tuple(left), first) * follow(tuple(right), second)
        case _:
            z = follow(node.of, y) * follow(node.by, y)
    return follow(node.then, z if node.plus is None else z + follow(node.plus, y))
