"""A model's description: `describe(module) -> Program`, the only place that inspects module classes.

A rule applies to modules of exactly its class, as built. A subclass, a hook of any kind, a replaced method or
parametrised weights may compute anything: such a module becomes an `Opaque` node, with the reason. A module that is
not ours is opaque too; those of ours inside it are described.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.ads import AdS
from resolvent.blocks.certified import gate, sandwich
from resolvent.blocks.certified.head import LipschitzReadout
from resolvent.blocks.certified.normalised import NormalisedLRU
from resolvent.blocks.certified.residual import LipschitzResidual
from resolvent.blocks.certified.spectral import Spectral
from resolvent.blocks.certified.state_pool import StatePool
from resolvent.blocks.embedding import ScaledEmbedding, TokenLogits
from resolvent.blocks.gru import GRU
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.head import Match, Readout
from resolvent.blocks.levels import LevelReadout, Levels
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.blocks.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm, ScaleNorm
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.projection import Projection
from resolvent.blocks.residual import Residual
from resolvent.blocks.stack import Stack
from resolvent.blocks.tower import Tower
from resolvent.layers.attention import Attention
from resolvent.layers.attention.attend import RelativeBias
from resolvent.layers.dss import DSS
from resolvent.layers.ema import EMA
from resolvent.layers.l2ru.layer import L2RU
from resolvent.layers.lru import LRU
from resolvent.layers.rglru import RGLRU
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.layers.s5 import S5
from resolvent.layers.s6 import S6
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.layers.shortconv import ShortConv
from resolvent.lowering import program as p
from resolvent.lowering.describer import Describer, check_untouched, join, rule
from resolvent.lowering.program import Chain, Node, Program
from resolvent.runtime.transforms import wide

_LAYER = ("bidirectional", "check_finite")


def describe(module: nn.Module, name: str = "") -> Program:
    """The program of a model, block or layer, or of our modules inside a user's own."""
    to = Describer()
    return Program(to.chain(module, name, "layer"), tuple(to.seen))


def outline(module: nn.Module) -> Chain:
    """The structure of a model, including changed modules and subclasses: for names, not for computation."""
    return Describer(strict=False).chain(module, "", "layer")


# -- pointwise in time ----------------------------------------------------------------------------------------------


@rule(nn.Identity, NoNorm)
def _identity(to: Describer, module: nn.Module, name: str) -> Chain:
    return ()


@rule(nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout, reads=("p",))
def _dropout(to: Describer, module: nn.Module, name: str) -> Chain:
    return (p.Dropout(name, module),)


@rule(nn.GELU, reads=("approximate",))
def _gelu(to: Describer, module: nn.GELU, name: str) -> Chain:
    return (p.Activation(name, module, "gelu" if module.approximate == "none" else "gelu_tanh"),)


_CURVES: dict[type[nn.Module], Any] = {nn.SiLU: "silu", nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh"}


@rule(nn.SiLU, nn.ReLU, reads=("inplace",))
@rule(nn.Sigmoid, nn.Tanh)
def _activation(to: Describer, module: nn.Module, name: str) -> Chain:
    return (p.Activation(name, module, _find(_CURVES, module)),)


@rule(nn.Linear, Projection)
def _linear(to: Describer, module: nn.Module, name: str) -> Chain:
    return (p.Linear(name, module, _weights),)


@rule(Spectral)
def _spectral(to: Describer, module: Spectral, name: str) -> Chain:
    return (p.Linear(name, module, lambda own: (own.matrix(), own.bias)),)


@rule(nn.Sequential)
def _sequential(to: Describer, module: nn.Sequential, name: str) -> Chain:
    return tuple(node for i, child in enumerate(module) for node in to.chain(child, join(name, str(i))))


_NORMS: dict[type[nn.Module], Any] = {LayerNorm: "layer", RMSNorm: "rms", ScaleNorm: "scale", BatchNorm: "batch"}


@rule(LayerNorm, RMSNorm, ScaleNorm, BatchNorm)
def _norm(to: Describer, module: nn.Module, name: str) -> Chain:
    return (p.Norm(name, module, _find(_NORMS, module)),)


@rule(AdS)
def _ads(to: Describer, module: AdS, name: str) -> Chain:
    """sigma(W y + b) * y, plus sigma(W2 y + b2) if it has a shift."""
    sigma = to.chain(module.sigma, f"{name}.sigma")
    by = (to.linear(module.scale, f"{name}.scale"), *sigma)
    plus = None if module.shift is None else (to.linear(module.shift, f"{name}.shift"), *sigma)
    return (p.Scale(name, module, "adaptive scaling sigma(W y) * y", (), by, plus, adaptive=True),)


@rule(Mixer, reads=("kind",))
def _mixer(to: Describer, module: Mixer, name: str) -> Chain:
    act = to.chain(module.act, f"{name}.act")
    drop = to.chain(module.dropout, f"{name}.dropout")
    final = to.chain(module.final, f"{name}.final")
    if module.linear is None:
        return act
    title = f"{module.kind} multiplies by a sigmoid"
    if module.kind in ("linear", "mlp"):
        first = to.chain(module.linear, f"{name}.linear")
        down = () if module.down is None else (*act, *to.chain(module.down, f"{name}.down"))
        return (p.Mix(name, module, (*act, *drop, *first, *down, *final)),)
    linear = to.linear(module.linear, f"{name}.linear")
    opened = p.Activation(name, module, "sigmoid")
    if module.kind == "glu":
        value, gate = _halves(linear)
        inside = *act, *drop, p.Scale(name, module, title, (value,), (gate, opened)), *final
    elif module.kind == "half_glu1":
        inside = *act, *drop, p.Scale(name, module, title, (), (linear, opened)), *final
    else:
        inside = p.Scale(name, module, title, (), (*act, *drop, linear, opened)), *final
    return (p.Mix(name, module, inside),)


@rule(MLP)
def _mlp(to: Describer, module: MLP, name: str) -> Chain:
    places = ("up", "act", "dropout", "down")
    inside = tuple(node for place in places for node in to.chain(getattr(module, place), f"{name}.{place}"))
    return (p.Mix(name, module, inside),)


@rule(GatedMLP)
def _gated_mlp(to: Describer, module: GatedMLP, name: str) -> Chain:
    gate, value = _halves(to.linear(module.up, f"{name}.up"))
    of = (gate, p.Activation(name, module, "gelu_tanh"))
    then = to.chain(module.down, f"{name}.down")
    return (p.Mix(name, module, (p.Scale(name, module, _branches(module), of, (value,), None, then),)),)


@rule(sandwich.Sandwich)
def _sandwich(to: Describer, module: sandwich.Sandwich, name: str) -> Chain:
    inside = p.Linear(name, module, _into), p.Activation(name, module, "relu"), p.Linear(name, module, _out_of)
    return (p.Bounded(name, module, "pointwise", inside),)


@rule(sandwich.SandwichMLP, reads=("lipschitz",))
def _sandwich_mlp(to: Describer, module: sandwich.SandwichMLP, name: str) -> Chain:
    to.exactly(module.layers, nn.ModuleList)
    inner: list[Node] = []
    for i, layer in enumerate(module.layers):
        check_untouched(layer, sandwich.Sandwich)
        inner += to.chain(layer, f"{name}.layers.{i}")
    end = math.sqrt(module.lipschitz)
    into: Any = module.layers[0] if len(module.layers) else module
    first = p.Factor(name, module, int(into.V.shape[0]), lambda own: own.U.new_tensor(end, dtype=torch.float64))
    last = p.Linear(name, module, lambda own: (end * wide(own.last()), None))
    return (p.Bounded(name, module, "pointwise", (first, *inner, last)),)


@rule(gate.Gate)
def _gate(to: Describer, module: gate.Gate, name: str) -> Chain:
    A, B = (p.Linear(name, module, _matrix(i)) for i in range(2))
    of, by = (A, p.Activation(name, module, "tanh")), (B, p.Activation(name, module, "sigmoid"))
    return (p.Bounded(name, module, "gate", (p.Scale(name, module, "Gate multiplies", of, by),)),)


# -- along time --------------------------------------------------------------------------------------------------------


_FILTERS: dict[type[nn.Module], Any] = {S4: "s4", S4D: "s4d", DSS: "dss", EMA: "ema", ShortConv: "shortconv"}
_RECURRENCES: dict[type[nn.Module], Any] = {
    S5: "s5", LRU: "lru", L2RU: "l2ru", S6: "s6", ScalarS6: "scalar_s6", RGLRU: "rglru", GRU: "gru"
}  # fmt: skip


@rule(S4, S4D, ShortConv, reads=_LAYER)
@rule(DSS, reads=(*_LAYER, "length"))
@rule(EMA, reads=(*_LAYER, "silu"))
def _filter(to: Describer, module: Any, name: str) -> Chain:
    return (p.Filter(name, module, _find(_FILTERS, module)),)


@rule(*_RECURRENCES, reads=_LAYER)
def _recurrence(to: Describer, module: nn.Module, name: str) -> Chain:
    return (p.Recurrence(name, module, _find(_RECURRENCES, module)),)


@rule(NormalisedLRU, reads=_LAYER)
def _normalised_lru(to: Describer, module: NormalisedLRU, name: str) -> Chain:
    to.exactly(module.layer, LRU)
    return (p.Recurrence(name, module, "normalised_lru"),)


@rule(Attention, reads=_LAYER)
def _attention(to: Describer, module: Attention, name: str) -> Chain:
    return (p.Attention(name, module),)


@rule(GatedAttention, reads=(*_LAYER, "prenorm", "attention", "reach", "z", "hidden"))
def _gated_attention(to: Describer, module: GatedAttention, name: str) -> Chain:
    to.exactly(module.bias, RelativeBias)
    value, base, leave = (to.linear(getattr(module, at), f"{name}.{at}") for at in ("value", "base", "leave"))
    norm = to.chain(module.norm, f"{name}.norm", "norm")
    average = to.chain(module.ema, f"{name}.ema", "layer")
    scale, drop = to.chain(module.ads, f"{name}.ads"), to.chain(module.dropout, f"{name}.dropout")
    return (p.GatedAttention(name, module, norm, average, scale, drop, value, base, leave, module.prenorm),)


@rule(Mamba, reads=_LAYER)
def _mamba(to: Describer, module: Mamba, name: str) -> Chain:
    h, z = _halves(to.linear(module.in_proj, f"{name}.in_proj"))
    silu = p.Activation(name, module, "silu")
    conv, ssm = to.chain(module.conv, f"{name}.conv", "layer"), to.chain(module.ssm, f"{name}.ssm", "layer")
    ads = () if module.ads is None else to.chain(module.ads, f"{name}.ads")
    then = to.chain(module.out_proj, f"{name}.out_proj")
    return (p.Scale(name, module, _branches(module), (h, *conv, silu, *ssm, *ads), (z, silu), None, then),)


@rule(Hawk, reads=_LAYER)
def _hawk(to: Describer, module: Hawk, name: str) -> Chain:
    enter, gate = to.chain(module.enter, f"{name}.enter"), to.chain(module.gate, f"{name}.gate")
    conv, rglru = to.chain(module.conv, f"{name}.conv", "layer"), to.chain(module.rglru, f"{name}.rglru", "layer")
    by = (*enter, *conv, *rglru, *to.chain(module.ads, f"{name}.ads"))
    of, then = (*gate, p.Activation(name, module, "gelu_tanh")), to.chain(module.leave, f"{name}.leave")
    return (p.Scale(name, module, _branches(module), of, by, None, then),)


@rule(H3, reads=(*_LAYER, "head_dim"))
def _h3(to: Describer, module: H3, name: str) -> Chain:
    query, key, value, out = (to.linear(getattr(module, at), f"{name}.{at}") for at in ("query", "key", "value", "out"))
    shift, ssm = to.filter(module.shift, f"{name}.shift"), to.chain(module.ssm, f"{name}.ssm", "layer")
    ads = to.chain(module.ads, f"{name}.ads")
    return (p.KeyedFilter(name, module, query, key, value, shift, ssm, ads, out),)


@rule(Pointwise, reads=_LAYER)
def _pointwise(to: Describer, module: Pointwise, name: str) -> Chain:
    return to.chain(module.inner, f"{name}.inner")


@rule(Residual, reads=(*_LAYER, "prenorm", "skip"))
def _residual(to: Describer, module: Residual, name: str) -> Chain:
    norm, layer = to.chain(module.norm, f"{name}.norm", "norm"), to.chain(module.layer, f"{name}.layer", "layer")
    ads, mixer, drop = (to.chain(getattr(module, at), f"{name}.{at}") for at in ("ads", "mixer", "dropout"))
    return (p.Skip(name, module, norm, layer, ads, mixer, drop, module.prenorm, module.skip),)


@rule(LipschitzResidual, reads=_LAYER)
def _lipschitz_residual(to: Describer, module: LipschitzResidual, name: str) -> Chain:
    layer, sigma = to.chain(module.layer, f"{name}.layer", "layer"), to.chain(module.sigma, f"{name}.sigma")
    share = p.Factor(f"{name}.share", module, module.d_model, lambda own: own.share())
    return p.Skip(name, module, (), layer, (), sigma, ()), share


@rule(Stack, reads=_LAYER)
def _stack(to: Describer, module: Stack, name: str) -> Chain:
    to.exactly(module.blocks, nn.ModuleList)
    blocks = enumerate(module.blocks)
    return tuple(node for i, block in blocks for node in to.chain(block, join(name, f"blocks.{i}"), "layer"))


# -- whole models ------------------------------------------------------------------------------------------------------


def model(to: Describer, module: Any, name: str) -> Chain:
    """Rule for `models.Model`, which registers itself: it is imported above this package."""
    head, at = module.head, join(name, "head")
    to.exactly(head, next((kind for kind in (LipschitzReadout, LevelReadout) if isinstance(head, kind)), Readout))
    shares = to.chain(head.levels, f"{at}.levels") if isinstance(head, LevelReadout) else ()
    held = getattr(head, "pool", None)
    if held is not None:
        to.exactly(held, StatePool)
    ends = p.Head(at, head, to.chain(head.hidden, f"{at}.hidden"), to.chain(head.out, f"{at}.out"))
    return (_network(to, module.tower, name, p.Pool(f"{at}.pool", held, head.pooling), ends, *shares),)


def two_tower(to: Describer, module: Any, name: str) -> Chain:
    """Rule for `models.TwoTower`."""
    head, at = module.head, join(name, "head")
    to.exactly(head, Match)
    ends = p.Match(at, head, to.linear(head.hidden, f"{at}.hidden"), to.linear(head.out, f"{at}.out"))
    return (_network(to, module.tower, name, p.Pool(f"{at}.pool", None, module.pooling), ends),)


def _network(to: Describer, tower: Tower, name: str, pool: p.Pool, head: p.Head | p.Match, *last: Node) -> p.Network:
    to.exactly(tower, Tower)
    at = join(name, "tower")
    entry = to.chain(tower.entry, f"{at}.entry")
    start, end = (to.chain(getattr(tower, place), f"{at}.{place}", "norm") for place in ("input_norm", "final_norm"))
    drop, body = to.chain(tower.dropout, f"{at}.dropout"), to.chain(tower.body, f"{at}.body", "layer")
    return p.Network(name, tower.body, entry, start, drop, body, (*end, *last), pool, head)


@rule(Levels)
def _levels(to: Describer, module: Levels, name: str) -> Chain:
    """clamp(W y + b, 0, 1), where W has one entry in each row: a channel's slope."""
    return p.Linear(name, module, _ramps), p.Activation(name, module, "ramp")


@rule(nn.Embedding)
def _embedding(to: Describer, module: nn.Embedding, name: str) -> Chain:
    return (p.Embedding(name, module),)


@rule(ScaledEmbedding, reads=("scale",))
def _scaled_embedding(to: Describer, module: ScaledEmbedding, name: str) -> Chain:
    scale = p.Factor(name, module, module.embedding_dim, lambda own: own.weight.new_tensor(own.scale))
    return p.Embedding(name, module), scale


@rule(TokenLogits, reads=("soft_cap",))
def _token_logits(to: Describer, module: TokenLogits, name: str) -> Chain:
    logits = p.Linear(name, module, lambda own: (own.table, None))
    if module.soft_cap is None:
        return (logits,)
    vocab = module.table.shape[0]
    into = p.Factor(name, module, vocab, lambda own: own.table.new_tensor(1 / own.soft_cap))
    out = p.Factor(name, module, vocab, lambda own: own.table.new_tensor(own.soft_cap))
    return logits, into, p.Activation(name, module, "tanh"), out


# -- reading the weights of nodes -------------------------------------------------------------------------------------


def _find(table: dict[type[nn.Module], Any], module: nn.Module) -> Any:
    return next(table[kind] for kind in type(module).__mro__ if kind in table)


_weights: Callable[[Any], p.Matrix] = attrgetter("weight", "bias")


def _halves(linear: p.Linear) -> tuple[p.Linear, p.Linear]:
    """The upper and the lower rows of one map."""
    name, module = linear.name, linear.module
    return p.Linear(name, module, _upper, linear), p.Linear(name, module, _lower, linear)


def _upper(module: Any) -> p.Matrix:
    return module.weight.chunk(2)[0], None if module.bias is None else module.bias.chunk(2)[0]


def _lower(module: Any) -> p.Matrix:
    return module.weight.chunk(2)[1], None if module.bias is None else module.bias.chunk(2)[1]


def _ramps(module: Levels) -> p.Matrix:
    W = torch.diag(module.slope).repeat_interleave(module.levels.shape[1], 0)  # (d k, d)
    return W, (0.5 - module.levels * module.slope[:, None]).flatten()


def _matrix(i: int) -> Callable[[Any], p.Matrix]:
    return lambda module: (module.matrices()[i], None)


def _psi(module: Any) -> Tensor:
    limit = sandwich.LARGEST_LOG_SCALE
    return wide(module.log_psi).clamp(-limit, limit).exp()


def _into(module: Any) -> p.Matrix:
    return math.sqrt(2) * wide(module.matrices()[1]) / _psi(module)[:, None], module.bias


def _out_of(module: Any) -> p.Matrix:
    return math.sqrt(2) * (_psi(module)[:, None] * wide(module.matrices()[0])).mT, None


def _branches(module: nn.Module) -> str:
    return f"{type(module).__name__} multiplies its branches"
