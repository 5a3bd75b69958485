"""A model of this library as the chain of stages that Linf intervals and linear bounds are carried through.

    stages = stages_of(model.eval(), length)
    certify_linf(stages, x, y, 0.01, LinfSettings(bounds=(0, 1)))

Time-invariant layers in either direction, linear maps, pointwise functions, batch norm with its running statistics,
residual connections and pooling by mean, last step or state have stages. What has none (layer norm, products of
features, selective layers, attention) is refused by name.
"""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor, nn

from resolvent.analysis.gain import NoBound
from resolvent.analysis.interval_pointwise import Function
from resolvent.analysis.interval_stages import Affine, Pointwise, Pool, Recurrence, Skip, Stage, Taps
from resolvent.blocks.linear_parts import system_parts, widened
from resolvent.blocks.lipschitz import LipschitzResidual
from resolvent.blocks.mixer import MLP, Mixer
from resolvent.blocks.norm import BatchNorm, NoNorm
from resolvent.blocks.normalised import NormalisedLRU
from resolvent.blocks.pointwise import Pointwise as PointwiseBlock
from resolvent.blocks.projection import Projection
from resolvent.blocks.residual import Residual
from resolvent.blocks.sandwich import LARGEST_LOG_SCALE, Sandwich, SandwichMLP
from resolvent.blocks.spectral import Spectral
from resolvent.blocks.stack import Stack
from resolvent.blocks.state_pool import StatePool
from resolvent.layers.contract import Layer
from resolvent.models.model import Model

Stages = list[Stage]


def stages_of(model: Model, length: int, lengths: Tensor | None = None) -> Stages:
    """The chain for sequences of `length` steps; with lengths (b,) pooling reads each sequence's own steps.

    Input are channels, or for a model of tokens the embeddings that `model.from_embedding` takes.
    """
    if lengths is not None and model.tower.body.bidirectional:
        raise ValueError(
            "stages_of: a bidirectional model turns each padded sequence at its own end; pass them unpadded."
        )
    tower, head = model.tower, model.head
    entry = [] if isinstance(tower.entry, nn.Embedding) else _of(tower.entry, "tower.entry")
    body = [*_of(tower.input_norm, "tower.input_norm"), *_of(tower.body, "tower.body")]
    pooled = _pool(head.pooling, getattr(head, "pool", None), length, lengths)
    last = [*_of(head.hidden, "head.hidden"), *_of(head.out, "head.out")]
    return [*entry, *body, *_of(tower.final_norm, "tower.final_norm"), pooled, *last]


@singledispatch
def _of(module: nn.Module, name: str) -> Stages:
    raise NoBound(f"stages_of: {name} ({type(module).__name__}) has no bound on a box of inputs.")


@_of.register(nn.Identity)
@_of.register(nn.Dropout)
@_of.register(NoNorm)
def _nothing(module: nn.Module, name: str) -> Stages:
    return []


@_of.register(nn.Linear)
@_of.register(Projection)
def _linear(module: nn.Linear | Projection, name: str) -> Stages:
    return [Affine(module.weight, module.bias)]


@_of.register(Spectral)
def _spectral(module: Spectral, name: str) -> Stages:
    return [Affine(module.matrix(), module.bias)]


@_of.register(nn.GELU)
@_of.register(nn.SiLU)
@_of.register(nn.ReLU)
@_of.register(nn.Tanh)
@_of.register(nn.Sigmoid)
def _activation(module: nn.Module, name: str) -> Stages:
    table: dict[type, Function] = {nn.SiLU: "silu", nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
    if isinstance(module, nn.GELU):
        return [Pointwise("gelu" if module.approximate == "none" else "gelu_tanh")]
    return [Pointwise(table[type(module)])]


@_of.register(nn.Sequential)
def _sequential(module: nn.Sequential, name: str) -> Stages:
    return [stage for i, child in enumerate(module) for stage in _of(child, f"{name}.{i}")]


@_of.register(BatchNorm)
def _batch_norm(module: BatchNorm, name: str) -> Stages:
    if module.training:
        raise NoBound(f"stages_of: {name} (BatchNorm) couples the samples of a batch in training; call eval().")
    scale = module.weight.double() / (module.running_var.double() + module.eps).sqrt()
    return [Affine(torch.diag(scale), module.bias.double() - module.running_mean.double() * scale)]


@_of.register(Mixer)
def _mixer(module: Mixer, name: str) -> Stages:
    act = _of(module.act, f"{name}.act")
    if module.linear is None:
        return act
    if module.kind not in ("linear", "mlp"):
        raise NoBound(f"stages_of: {name} ({module.kind}) multiplies features, which no line bounds.")
    inner = [*act, *_of(module.linear, f"{name}.linear")]
    if module.down is not None:
        inner += [*_of(module.act, f"{name}.act"), *_of(module.down, f"{name}.down")]
    return [*inner, *_of(module.final, f"{name}.final")]


@_of.register(MLP)
def _mlp(module: MLP, name: str) -> Stages:
    return [*_of(module.up, f"{name}.up"), *_of(module.act, f"{name}.act"), *_of(module.down, f"{name}.down")]


@_of.register(Sandwich)
def _sandwich(module: Sandwich, name: str) -> Stages:
    A, B = (m.double() for m in module.matrices())
    psi = module.log_psi.double().clamp(-LARGEST_LOG_SCALE, LARGEST_LOG_SCALE).exp()
    first = Affine(math.sqrt(2) * B / psi[:, None], module.bias)
    return [first, Pointwise("relu"), Affine(math.sqrt(2) * (psi[:, None] * A).mT)]


@_of.register(SandwichMLP)
def _sandwich_mlp(module: SandwichMLP, name: str) -> Stages:
    end = math.sqrt(module.lipschitz)
    inner = [stage for i, layer in enumerate(module.layers) for stage in _of(layer, f"{name}.layers.{i}")]
    last = end * module.last().double()
    return [Affine(end * torch.eye(_width(module), dtype=torch.float64)), *inner, Affine(last)]


def _width(module: SandwichMLP) -> int:
    first = module.layers[0] if len(module.layers) else module
    return int(first.V.shape[0])  # type: ignore[index]


@_of.register(Layer)
def _layer(module: Layer, name: str) -> Stages:
    """A time-invariant layer by its system, or the systems of its two directions."""
    first, *after = system_parts(module, name)
    stages: Stages
    if first.kind == "sum":
        forward, back = (part.system for part in first.parts)
        assert forward is not None
        stages = [Recurrence(forward, back)]
    elif first.system is not None:
        stages = [Recurrence(first.system)]
    else:
        raise NoBound(f"stages_of: {name} ({type(module).__name__}): {first.reason}")
    for part in after:
        if part.kind == "bias":
            eye = torch.eye(module.d_model, dtype=torch.float64)
            stages.append(Affine(eye, module.bias))  # type: ignore[arg-type]
        else:
            stages.append(Pointwise("silu"))
    return stages


@_of.register(NormalisedLRU)
def _normalised(module: NormalisedLRU, name: str) -> Stages:
    return [Recurrence(widened(module.system()))]


@_of.register(Stack)
def _stack(module: Stack, name: str) -> Stages:
    return [stage for i, block in enumerate(module.blocks) for stage in _of(block, f"{name}.blocks.{i}")]


@_of.register(PointwiseBlock)
def _pointwise(module: PointwiseBlock, name: str) -> Stages:
    return _of(module.inner, f"{name}.inner")


@_of.register(Residual)
def _residual(module: Residual, name: str) -> Stages:
    norm = _of(module.norm, f"{name}.norm")
    inner = [(module.layer, "layer"), (module.ads, "ads"), (module.mixer, "mixer")]
    branch = [stage for part, place in inner for stage in _of(part, f"{name}.{place}")]
    branch = [*norm, *branch] if module.prenorm else branch
    body: Stages = [Skip(branch)] if module.skip else branch
    return body if module.prenorm else [*body, *norm]


@_of.register(LipschitzResidual)
def _lipschitz_residual(module: LipschitzResidual, name: str) -> Stages:
    branch = [*_of(module.layer, f"{name}.layer"), *_of(module.sigma, f"{name}.sigma")]
    share = module.share().double() * torch.eye(module.d_model, dtype=torch.float64, device=module.share().device)
    return [Skip(branch), Affine(share)]


def _pool(kind: str, pool: nn.Module | None, length: int, lengths: Tensor | None) -> Stage:
    if isinstance(pool, StatePool):
        if lengths is not None:
            raise ValueError("stages_of: pooling by state needs sequences of one length; pass them unpadded.")
        return Taps(pool.powers(length).flip(-1))
    if kind not in ("mean", "last"):
        raise NoBound(f"stages_of: head.pool ({kind}) has no stage; pool by mean, last step or state.")
    return Pool(kind, lengths)  # type: ignore[arg-type]
