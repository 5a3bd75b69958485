"""A model of this library as the chain of stages for Linf intervals and linear bounds.

    stages = stages_of(model.eval(), length)
    certify_linf(stages, x, y, 0.01, LinfSettings(bounds=(0, 1)))

Time-invariant layers in either direction, linear maps, pointwise functions, batch norm with its running statistics,
residual connections and pooling by mean, last step or state have stages. Others (layer norm, products of
features, selective layers, attention) are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.certificates.gain import NoBound
from resolvent.analysis.certificates.interval_stages import Affine, Pointwise, Skip, Stage
from resolvent.analysis.certificates.interval_time import Pool, Recurrence, Taps
from resolvent.lowering import program as p
from resolvent.lowering.describe import describe
from resolvent.lowering.linear_parts import system_parts
from resolvent.lowering.program import Chain, Node
from resolvent.models.model import Model

Stages = list[Stage]


def stages_of(model: Model, length: int, lengths: Tensor | None = None) -> Stages:
    """The chain for sequences of `length` steps; with lengths (b,) for padded ones, each up to its own length.

    Inputs are channels, or for token models the embeddings taken by `model.from_embedding`.
    """
    program = describe(model)
    network = program.network
    if network is None:
        return _refuse(program.chain[0])
    last = _of((*network.head.hidden, *network.head.out)) if isinstance(network.head, p.Head) else _refuse(network.head)
    stages = [*_of(network.tower), _pool(network.pool, length), *last]
    return stages if lengths is None else pad_stages(stages, lengths)


def pad_stages(stages: Sequence[Stage], lengths: Tensor) -> Stages:
    """The same chain for a batch of sequences of these lengths (b,)."""
    return [_pad_stage(stage, lengths) for stage in stages]


def _pad_stage(stage: Stage, lengths: Tensor) -> Stage:
    if isinstance(stage, Skip):
        return Skip(pad_stages(stage.branch, lengths))
    return replace(stage, lengths=lengths) if isinstance(stage, Recurrence | Pool | Taps) else stage


def _of(chain: Chain) -> Stages:
    return [stage for node in chain for stage in _STAGES.get(type(node), _refuse)(node)]


def _refuse(node: Node) -> Stages:
    kind = type(node.module).__name__
    why = node.reason("stage") if isinstance(node, p.Opaque) else f"{kind} has no stage"
    raise NoBound(f"stages_of: {node.name or 'model'} ({kind}) has no bound on a box of inputs: {why}.")


def _activation(node: p.Activation) -> Stages:
    assert node.kind != "none"
    return _refuse(node) if node.kind == "ramp" else [Pointwise(node.kind)]


def _norm(node: p.Norm) -> Stages:
    if node.kind != "batch":
        _refuse(node)
    module = node.module
    if module.training:
        raise NoBound(f"stages_of: {node.name} (BatchNorm) couples the samples of a batch in training; call eval().")
    scale = module.weight.double() / (module.running_var.double() + module.eps).sqrt()
    moved, bias = module.running_mean.double() * scale, module.bias.double()
    return [Affine(torch.diag(scale), bias - moved, bias.abs() + 2 * moved.abs())]


def _scale(node: p.Scale) -> Stages:
    message = f"{node.title}, a product of features, which no line bounds"
    raise NoBound(f"stages_of: {node.name} ({type(node.module).__name__}) has no bound on a box of inputs: {message}.")


def _factor(node: p.Factor) -> Stages:
    value = node.value.double()
    return [Affine(value * torch.eye(node.d, dtype=torch.float64, device=value.device))]


def _layer(node: p.Filter | p.Recurrence) -> Stages:
    """A time-invariant layer by its system, or the systems of its two directions."""
    if isinstance(node, p.Recurrence) and not node.linear:
        _refuse(node)
    first, *after = system_parts(node)
    stages: Stages
    if first.kind == "sum":
        forward, back = (part.system for part in first.parts)
        assert forward is not None
        stages = [Recurrence(forward, back)]
    elif first.system is not None:
        stages = [Recurrence(first.system)]
    else:
        raise NoBound(f"stages_of: {node.name} ({type(node.module).__name__}): {first.reason}")
    for part in after:
        if part.kind == "bias":
            stages.append(Affine(torch.eye(node.module.d_model, dtype=torch.float64), node.module.bias))
        else:
            stages.append(Pointwise("silu"))
    return stages


def _skip(node: p.Skip) -> Stages:
    norm, branch = _of(node.norm), _of(node.branch)
    branch = [*norm, *branch] if node.prenorm else branch
    body: Stages = [Skip(branch)] if node.adds else branch
    return body if node.prenorm else [*body, *norm]


def _pool(node: p.Pool, length: int) -> Stage:
    if node.kind == "state":
        return Taps(node.module.powers(length))
    if node.kind not in ("mean", "last"):
        raise NoBound(f"stages_of: {node.name} ({node.kind}) has no stage; pool by mean, last step or state.")
    return Pool(node.kind)


_STAGES: dict[type[Node], Callable[[Any], Stages]] = {
    p.Embedding: lambda node: [], p.Dropout: lambda node: [], p.Activation: _activation, p.Norm: _norm,
    p.Linear: lambda node: [Affine(*node.read(node.module))], p.Factor: _factor, p.Scale: _scale,
    p.Bounded: lambda node: _of(node.inside), p.Mix: lambda node: _of(node.inside), p.Filter: _layer,
    p.Recurrence: _layer, p.Skip: _skip,
}  # fmt: skip
