"""Mega layers of the released fairseq code: names mega_layer.* (gated attention) and nffn.* (feed-forward)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from resolvent.blocks.block import Layer
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP
from resolvent.blocks.norm import NormKind
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.residual import Residual
from resolvent.blocks.stack import Stack
from resolvent.models.foreign.fill import Take, Weights, fill, take


def import_mega(
    weights: Weights,
    *,
    chunk: int | None = None,
    attention: Literal["softmax", "laplace"] = "softmax",
    masked: bool = False,
    prenorm: bool = True,
    norm_eps: float = 1e-5,
) -> Stack:
    """One layer, or all of an encoder's (names layers.0., layers.1., ...), as a stack (b, l, d) -> (b, l, d).

    chunk      its chunk_size; None: no chunks
    masked     whether a query sees only its past (the decoders); encoders see both sides, also where the moving
               average is causal
    """
    weights = weights.stripped("encoder.")
    many = any(name.startswith("layers.") for name in weights.tensors)
    places = [f"layers.{i}." for i in range(weights.count("layers."))] if many else [""]
    sizes = [_sizes(weights, place) for place in places]
    blocks: list[Layer] = []
    table: dict[str, Take] = {}
    for i, (place, (d, z, hidden, n, ffn, both, norm)) in enumerate(zip(places, sizes, strict=True)):
        size = weights.shape(f"{place}mega_layer.rel_pos_bias.rel_pos_bias", 1)[0] // 2 + 1
        gated = GatedAttention(
            d,
            z=z,
            hidden=hidden,
            d_state=n,
            attention=attention,
            chunk=chunk,
            max_length=size,
            bidirectional=both,
            unmasked=not masked and not both,
            norm=norm,
            norm_eps=norm_eps,
            prenorm=prenorm,
        )
        feed = Residual(Pointwise(d, MLP(d, ffn, act="silu")), norm=norm, norm_eps=norm_eps, prenorm=prenorm)
        blocks += [gated, feed]
        table |= _take_gated(f"blocks.{2 * i}.", f"{place}mega_layer.", both, masked, norm)
        table |= _feed(f"blocks.{2 * i + 1}.", f"{place}nffn.", norm)
    return fill(Stack(blocks), weights, table)


def _sizes(weights: Weights, place: str) -> tuple[int, int, int, int, int, bool, NormKind]:
    """d, z, hidden, states, ffn, whether the average is bidirectional, and the norm."""
    mega = f"{place}mega_layer."
    hidden, d = weights.shape(f"{mega}v_proj.weight", 2)
    rows, n = weights.shape(f"{mega}move.gamma", 2)
    norm: NormKind = "layer" if f"{mega}norm.norm.bias" in weights else "rms"
    if f"{mega}norm.norm.running_mean" in weights:
        norm = "batch"
    elif f"{mega}norm.norm.scalar" in weights:
        norm = "scale"
    z, ffn = weights.shape(f"{mega}gamma", 2)[1], weights.shape(f"{place}nffn.fc1.weight", 2)[0]
    return d, z, hidden, n, ffn, rows == 2 * d, norm


def _take_gated(own: str, other: str, both: bool, masked: bool, norm: NormKind) -> dict[str, Take]:
    """(The released code's `delta` is the weight alpha here, its `alpha` the damping.)"""
    count = 2 if both else 1
    turned = {"alpha": "delta", "damping": "alpha", "beta": "beta", "eta": "gamma"}
    table = {
        f"{own}ema.{name}": take(f"{other}move.{their}", change=lambda t: t.reshape(count, -1, t.shape[1]))
        for name, their in turned.items()
    }
    table |= {f"{own}ema.omega": take(f"{other}move.omega")}
    for name, their in (("value", "v_proj"), ("base", "mx_proj"), ("leave", "h_proj")):
        table |= {f"{own}{name}.{part}": take(f"{other}{their}.{part}") for part in ("weight", "bias")}
    table |= {f"{own}{name}": take(f"{other}{name}") for name in ("gamma", "beta")}
    bias = _past if masked else _reverse
    table[f"{own}bias.table"] = take(f"{other}rel_pos_bias.rel_pos_bias", change=bias)
    return table | _norm(f"{own}norm.", f"{other}norm.norm.", norm)


def _feed(own: str, other: str, norm: NormKind) -> dict[str, Take]:
    table: dict[str, Take] = {}
    for name, their in (("up", "fc1"), ("down", "fc2")):
        table |= {f"{own}layer.inner.{name}.{part}": take(f"{other}{their}.{part}") for part in ("weight", "bias")}
    return table | _norm(f"{own}norm.", f"{other}norm.norm.", norm)


def _norm(own: str, other: str, norm: NormKind) -> dict[str, Take]:
    if norm == "rms":
        return {f"{own}scale": take(f"{other}weight", change=lambda w: w - 1)}
    if norm == "scale":
        return {f"{own}scale": take(f"{other}scalar", change=lambda t: t.reshape(()))}
    names = ("weight", "bias", "running_mean", "running_var") if norm == "batch" else ("weight", "bias")
    return {f"{own}{name}": take(f"{other}{name}") for name in names}


def _reverse(line: Tensor) -> Tensor:
    """Theirs is indexed by key minus query, ours by query minus key."""
    return line.flip(0)[None]


def _past(line: Tensor) -> Tensor:
    return line[: line.shape[0] // 2 + 1].flip(0)[None]
