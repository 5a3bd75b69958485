"""Models and samples that certificates are checked on: any layer, extreme weights, uneven lengths, large offsets."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.models import (
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    DSSConfig,
    EMAConfig,
    L2RUConfig,
    LipschitzConfig,
    LRUConfig,
    Model,
    ModelConfig,
    NormalisedLRUConfig,
    ResidualConfig,
    S4Config,
    S4DConfig,
    S5Config,
    build_model,
)

LAYERS = (S4DConfig, S4Config, S5Config, LRUConfig, DSSConfig, EMAConfig)
OFFSETS = (0.0, 0.0, 1.0, 1e3, 1e6)
SIGMAS = ("sandwich", "gate", "relu", "tanh", "none")


@dataclass(frozen=True, eq=False)
class Case:
    """A float32 model in evaluation mode, samples with the answers that it gives, and what it is called."""

    name: str
    model: Model
    x: Tensor  # (b, l, c)
    y: Tensor  # (b,)
    lengths: Tensor | None  # (b,)


def make_case(seed: int, samples: int) -> Case:
    """Everything about it follows from the seed."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    config = _bounded(pick) if seed % 2 else _free(pick)
    model = build_model(config).eval()
    assert isinstance(model, Model)
    weights = _stir(model, pick, bounded=bool(seed % 2))
    l, offset = pick.choice((1, 5, 9, 16, 33)), pick.choice(OFFSETS)
    x = pick.choice((0.1, 1.0, 10.0)) * torch.randn(samples, l, _channels(config)) + offset
    lengths = torch.randint(1, l + 1, (samples,)) if pick.random() < 0.6 else None
    if lengths is not None:
        x[torch.arange(l) >= lengths[:, None]] = pick.choice((0.0, 1e4))
    with torch.no_grad():
        y = model(x, lengths).argmax(-1)
    name = f"{_name(config)}, {weights} weights, {l} steps{'' if lengths is None else ' at most'}, offset {offset:g}"
    return Case(name, model, x, y, lengths)


def _channels(config: ModelConfig) -> int:
    assert isinstance(config.input, ChannelsConfig)
    return config.input.channels


def _free(pick: random.Random) -> ModelConfig:
    """A residual model of time-invariant layers."""
    kind = pick.choice(LAYERS)
    layer: Any = kind() if kind is EMAConfig else kind(d_state=pick.choice((2, 8)))
    if kind in (S4DConfig, S4Config, S5Config, LRUConfig, DSSConfig) and pick.random() < 0.3:
        layer = replace(layer, bidirectional=True)
    mixer, act = pick.choice(("linear", "mlp", "none")), pick.choice(("relu", "gelu", "tanh", "silu"))
    head = ClassifierConfig(pick.choice((2, 4)), pick.choice(("mean", "last", "max")), hidden=pick.choice((0, 6)))
    block = ResidualConfig(layer, mixer=mixer, activation=act)
    return ModelConfig(
        ChannelsConfig(pick.choice((1, 3))), block, head, pick.choice((3, 6)),
        pick.choice((1, 2)), norm=pick.choice(("none", "none", "batch")), prenorm=pick.random() < 0.7,
    )  # fmt: skip


def _bounded(pick: random.Random) -> ModelConfig:
    """A model with a prescribed gain."""
    state = pick.choice((4, 8))
    layer: Any = (L2RUConfig if pick.random() < 0.7 else NormalisedLRUConfig)(state, pick.choice((0.5, 2.0)))
    head = ClassifierConfig(
        pick.choice((2, 4)), pick.choice(("state", "state", "mean", "last", "max")), hidden=pick.choice((0, 8))
    )
    return ModelConfig(
        ChannelsConfig(pick.choice((1, 3))), LipschitzConfig(layer, pick.choice(SIGMAS)), head, pick.choice((2, 4)),
        pick.choice((1, 2)), norm="none", certified=CertifiedConfig(pick.choice((0.1, 3.0, 100.0)), memory=8),
    )  # fmt: skip


def _stir(model: Model, pick: random.Random, bounded: bool) -> str:
    """Fresh, moved, or extreme: then some tensors are thousands of times larger or smaller."""
    how = pick.choice(("fresh", "moved", "extreme"))
    for name, p in model.named_parameters():
        free = bounded or not any(part in name for part in (".layer.", "log_", "lam", "dt"))
        if how == "moved":
            p.data += 0.1 * p.data.abs().mean() * torch.randn_like(p)
        elif how == "extreme" and free and pick.random() < 0.5:
            p.data *= 10 ** pick.uniform(-3, 3)
    for buffer in (b for n, b in model.named_buffers() if "running" in n):
        buffer.data = buffer.data + 0.5 * torch.rand_like(buffer)
    return how


def _name(config: ModelConfig) -> str:
    block: Any = config.block
    kind = type(block.layer).__name__.removesuffix("Config")
    both = " both ways" if getattr(block.layer, "bidirectional", False) else ""
    inner = block.sigma if isinstance(block, LipschitzConfig) else f"{block.mixer} {block.activation}"
    head: Any = config.head
    return f"{kind}{both}, {inner}, {config.norm} norm, {head.pooling}"


def unit_directions(x: Tensor, lengths: Tensor | None, generator: torch.Generator) -> Tensor:
    """Directions of L2 norm one on the samples' own entries: like x, float64."""
    d = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    if lengths is not None:
        d = d * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
    return d / d.flatten(1).norm(dim=1).clamp_min(math.ulp(1.0))[:, None, None]
