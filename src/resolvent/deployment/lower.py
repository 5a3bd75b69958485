"""From a described model to its exported parts: one case for each kind of node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.deployment import maps
from resolvent.deployment import recurrences as r
from resolvent.deployment.attention import Attending, GatedAttending
from resolvent.deployment.flow import BothWays, Series
from resolvent.deployment.keyed import Keyed
from resolvent.lowering import program as p
from resolvent.lowering.program import Chain, Node
from resolvent.ops.blocked import DenseBank
from resolvent.usage.error import UsageError


def series(chain: Chain) -> Series:
    """The parts of a chain; dropout is the identity in an exported model."""
    return Series(*(part(node) for node in chain if not isinstance(node, p.Dropout)))


def part(node: Node) -> nn.Module:
    match node:
        case p.Linear():
            W, b = node.read(node.module)
            own = next(node.module.parameters(), W)
            return maps.Map(W.to(own.dtype), b)  # some are computed in float64
        case p.Activation():
            return maps.Curve(node.kind)
        case p.Norm():
            return _norm(node)
        case p.Factor():
            return maps.Times(float(node.value.detach()))
        case p.Mix() | p.Bounded():
            return series(node.inside)
        case p.Scale():
            plus = None if node.plus is None else series(node.plus)
            return maps.Product(series(node.of), series(node.by), plus, series(node.then))
        case p.Skip():
            return maps.Skipped(series(node.norm), series(node.branch), node.prenorm, node.adds)
        case p.Filter():
            return _filter(node)
        case p.Recurrence():
            return _recurrence(node)
        case p.Attention():
            return Attending(node.module)
        case p.GatedAttention():
            chains = {"norm": node.norm, "average": node.average, "scale": node.scale}
            linear = {"value": node.value, "base": node.base, "leave": node.leave}
            held = {name: series(chain) for name, chain in chains.items()} | {n: part(m) for n, m in linear.items()}
            return GatedAttending(node.module, held, node.prenorm)
        case p.KeyedFilter():
            linear = {"query": node.query, "key": node.key, "value": node.value, "out": node.out}
            inside = {name: part(each) for name, each in linear.items()} | {"scale": series(node.scale)}
            return Keyed(inside, part(node.shift), series(node.ssm), node.module.shift_D, node.module.head_dim)
        case p.Embedding():
            return maps.Table(node.module.weight)
        case p.Opaque():
            raise UsageError(f"export: {node.name or 'the model'}: {node.reason('exported form')}.")
    raise UsageError(f"export: {node.name}: {type(node.module).__name__} has no exported form yet.")


def _norm(node: p.Norm) -> nn.Module:
    own = node.module
    if node.kind == "batch":
        scale = own.weight * torch.rsqrt(own.running_var + own.eps)
        return maps.Affine(scale, own.bias - own.running_mean * scale)
    if node.kind == "layer":
        return maps.Normed(True, own.eps, own.weight, own.bias)
    return maps.Normed(False, own.eps, 1 + own.scale if node.kind == "rms" else own.scale, None)


def _filter(node: p.Filter) -> nn.Module:
    own = node.module
    if node.kind == "shortconv":
        forth = r.Taps(own.weight, own.bias)
        return BothWays(forth, r.Taps(own.weight_back, None), False) if own.bidirectional else forth

    def make(back: bool) -> nn.Module:
        if node.kind == "dss" and own.kernel == "softmax" and own.length is None:
            return r.Softmax(own, back)
        return _bank(own._bank(0, back=back), own.dtype)

    made = BothWays(make(False), make(True), node.kind != "ema") if own.bidirectional else make(False)
    return Series(made, maps.Curve("silu")) if node.silu else made


def _bank(bank: Any, dtype: torch.dtype) -> nn.Module:
    return r.Dense(bank, dtype) if isinstance(bank, DenseBank) else r.Diagonal(bank, dtype)


def _recurrence(node: p.Recurrence) -> nn.Module:
    own = node.module
    match node.kind:
        case "s5" | "lru":
            forth = r.Coupled(*own.tables())
            if not own.bidirectional:
                return forth
            return BothWays(forth, r.Coupled(own.tables().lam_bar, own.tables().W_in, own._back_table(), None), False)
        case "normalised_lru":
            return Series(r.Coupled(*own.layer.tables()), maps.Times(float(own.scale().detach())))
        case "l2ru":
            return r.Delayed(*own.matrices())
        case "s6":
            return _twice(own, lambda s: r.Selective(s.x_proj, s.dt_proj, s.dt_bias, s._A(), s.D))
        case "scalar_s6":
            return _twice(own, lambda s: r.Selective(torch.cat([s.q[None], s.W_B, s.W_C]), None, s.p, s.A, None))
        case "rglru":
            return _twice(own, lambda s: r.Gated(s.W_a, s.W_x, s.b_a, s.b_x, _rate(s)))
        case "gru":
            unit = r.GatedUnit(own.unit)
            if own.conv is None:
                return unit
            return Series(r.Taps(own.conv.weight, own.conv.bias), maps.Curve("silu"), unit)


def _rate(layer: Any) -> Tensor:
    return -layer.c * nn.functional.softplus(layer.L)


def _twice(own: Any, make: Any) -> nn.Module:
    return BothWays(make(own), make(own.other), False) if own.bidirectional else make(own)
