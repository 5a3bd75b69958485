"""Lipschitz constants: a program as the chain of parts that certificates are computed from.

Constants are for evaluation mode (dropout is then the identity and not a part). A module without a constant, or an
unknown one, is a part without a constant, with the reason: a bound is never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from resolvent.blocks.certified.head import CertifiedPooling
from resolvent.lowering import program as p
from resolvent.lowering.describe import describe
from resolvent.lowering.linear_parts import SILU_SLOPE, bias_part, linear_parts, system_parts
from resolvent.lowering.program import Chain, Node
from resolvent.ssm.part import Part
from resolvent.ssm.rounding import Rounding, count, of_function

# sup |f'|. GELU: f' = Phi(x) + x phi(x), f'' = phi(x) (2 - x^2) vanishes at x = sqrt(2), where
# f' = (1 + erf(1)) / 2 + exp(-1) / sqrt(pi) = 1.128904...; its least value is 1 - that, so smaller in size.
# The tanh form has its largest slope 1.128993... at 1.418504 (rounded up).
SLOPES = {
    "gelu": (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi), "gelu_tanh": 1.128994, "silu": SILU_SLOPE,
    "relu": 1.0, "tanh": 1.0, "sigmoid": 0.25, "ramp": 1.0,
}  # fmt: skip

WANTED = "known Lipschitz constant"
PRODUCT = "a product of features has no Lipschitz constant: its slope in one factor is the other, which is unbounded"
SELECTIVE = "its recurrence depends on its input, " + PRODUCT
ATTENTION = "attention scores are products of features, and dot-product attention has no Lipschitz constant"
TOKENS = "tokens have no distance in L2: bounds hold for what follows, from_embedding(e), in the space of embeddings"


def parts_of(module: nn.Module, name: str, length: int | None = None) -> list[Part]:
    """The chain of parts of `module` at the dotted path `name`; empty for an identity.

    `length`, the shortest sequence that a whole model's bound is for, sharpens the mean's constant, 1 / sqrt(length).

    Examples:
        >>> [part.kind for part in rv.blocks.parts_of(torch.nn.Linear(4, 2), "head")]
        ['linear', 'bias']
    """
    return chain_parts(describe(module, name).chain, length)


def chain_parts(chain: Chain, length: int | None = None) -> list[Part]:
    return [part for node in chain for part in _node_parts(node, length)]


def _node_parts(node: Node, length: int | None) -> list[Part]:
    if isinstance(node, p.Network):
        return _network(node, length)
    found: list[Part] = _PARTS[type(node)](node)
    return found


# -- pointwise in time ----------------------------------------------------------------------------------------------


def _activation(node: p.Activation) -> list[Part]:
    slope, at_zero = SLOPES[node.kind], 0.5 if node.kind == "sigmoid" else 0.0
    return [Part(node.name, "pointwise", slope, rounding=of_function(slope, at_zero))]


def _norm(node: p.Norm) -> list[Part]:
    if node.kind == "batch":
        return _batch_norm(node)
    by, eps = "the standard deviation" if node.kind == "layer" else "the root mean square", node.module.eps
    least = f"only eps = {eps:g} bounds its slope there, at {eps**-0.5:.0f} times the weight"
    return [_none(node, "norm", f"{_class(node)} divides by {by}: unbounded near zero, {least}")]


def _batch_norm(node: p.Norm) -> list[Part]:
    """With running statistics it is a diagonal linear map."""
    module = node.module
    if module.training:
        return [_none(node, "norm", "BatchNorm in training couples the samples of a batch; call eval()")]
    scale = module.weight.detach().double() / (module.running_var.double() + module.eps).sqrt()
    largest, moved = float(scale.abs().max()), module.running_mean.double() * scale
    bias = bias_part(f"{node.name}.bias", module.bias.detach() - moved, module.bias.detach().abs() + 2 * moved.abs())
    return [Part(node.name, "norm", largest, rounding=of_function(largest)), bias]


def _scale(node: p.Scale) -> list[Part]:
    """A product of branches; named after both if a branch has a selective recurrence."""
    inner = [n for n in p.walk((*node.of, *node.by)) if isinstance(n, p.Recurrence) and n.selective]
    if not inner:
        return [_none(node, "gate", f"{node.title}: {PRODUCT}")]
    reason = f"{node.title}, and {_class(inner[0])}: {SELECTIVE}"
    return [Part(node.name, "selective", None, parts=tuple(chain_parts(tuple(inner))), reason=reason)]


def _factor(node: p.Factor) -> list[Part]:
    return [Part(node.name, "linear", float(node.value.detach().double()))]


def _bounded_parts(node: p.Bounded) -> list[Part]:
    return [Part(node.name, node.kind, node.module.gain(), rounding=node.module.rounding())]


# -- along time --------------------------------------------------------------------------------------------------------


def _recurrence(node: p.Recurrence) -> list[Part]:
    if node.selective:
        return [_none(node, "selective", f"{_class(node)}: {SELECTIVE}")]
    return system_parts(node) if node.linear else [_none(node, "pointwise", f"{_class(node)} has no {WANTED}")]


def _skip(node: p.Skip) -> list[Part]:
    norm, branch = chain_parts(node.norm), chain_parts(node.branch)
    branch = [*norm, *branch] if node.prenorm else branch
    body = [Part(node.name, "residual", parts=tuple(branch))] if node.adds else branch
    return body if node.prenorm else [*body, *norm]


# -- whole models ------------------------------------------------------------------------------------------------------


def _network(node: p.Network, length: int | None) -> list[Part]:
    if isinstance(node.head, p.Match):
        head = [_none(node.head, "gate", f"Match multiplies two documents: {PRODUCT}")]
    else:
        head = chain_parts((*node.head.hidden, *node.head.out))
    return [*chain_parts(node.tower), _pool(node.pool, length), *head]


def _pool(node: p.Pool, length: int | None) -> Part:
    if node.kind == "state":
        return Part(node.name, "pool", node.module.gain(), reason="state", rounding=node.module.rounding())
    return pool_part(node.kind, length, node.name)


def pool_part(kind: CertifiedPooling, length: int | None, name: str = "head.pool") -> Part:
    """From sequences in L2 to a vector: |x_l| and |max_t x_t| are at most |x|; |mean_t x_t| <= |x| / sqrt(l)."""
    if kind == "mean":
        least = 1 if length is None else length
        gain = 1 / math.sqrt(least)
        reason = f"mean over at least {least} steps"
        return Part(name, "pool", gain, reason=reason, rounding=lambda l: Rounding(count(l) * gain), least=least)
    reason = "every step by itself" if kind == "none" else kind
    return Part(name, "pool", 1.0, reason=reason, rounding=lambda l: Rounding(1.0))


def _opaque(node: p.Opaque) -> list[Part]:
    return [Part(node.name or "model", "pointwise", None, reason=node.reason(WANTED))]


def _none(node: Node, kind: Any, reason: str) -> Part:
    return Part(node.name, kind, None, reason=reason)


def _always(kind: Any, reason: str) -> Callable[[Node], list[Part]]:
    return lambda node: [_none(node, kind, reason)]


def _class(node: Node) -> str:
    return type(node.module).__name__


_PARTS: dict[type[Node], Callable[[Any], list[Part]]] = {
    p.Linear: lambda node: linear_parts(node.name, *node.read(node.module)), p.Activation: _activation,
    p.Dropout: lambda node: [], p.Norm: _norm, p.Scale: _scale, p.Mix: lambda node: chain_parts(node.inside),
    p.Factor: _factor, p.Bounded: _bounded_parts, p.Filter: system_parts, p.Recurrence: _recurrence, p.Skip: _skip,
    p.Attention: _always("attention", ATTENTION), p.GatedAttention: _always("attention", ATTENTION),
    p.KeyedFilter: _always("gate", f"H3 multiplies its branches: {PRODUCT}"), p.Embedding: _always("embedding", TOKENS),
    p.Opaque: _opaque,
}  # fmt: skip
