"""LRU: the flax parameters of minimal-LRU (nu_log, theta_log, gamma_log, B_re, ...), a layer or its classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from resolvent.layers.lru import LRU
from resolvent.models.foreign.fill import Take, Weights, fill, take
from resolvent.models.foreign.flax_stack import import_stack
from resolvent.models.layer_config import LRUConfig


def import_lru(weights: Weights, **facts: Any) -> nn.Module:
    """One LRU as a layer, or a ClassificationModel as a model.

    prenorm, pooling, norm_eps   of the whole model: see `flax_stack.import_stack`
    """
    whole = "decoder.kernel" in weights
    n, d = weights.shape(f"{'encoder.layers_0.seq.' if whole else ''}B_re", 2)
    if whole:
        return import_stack(weights, LRUConfig(n), _table, norm_name="normalization", **facts)
    if facts:
        raise ValueError(f"import_weights: {', '.join(facts)} belong to a whole model; these are weights of one layer.")
    return fill(LRU(d, n), weights, _table("", ""))


def _table(own: str, other: str) -> dict[str, Take]:
    same = {f"{own}{name}": take(f"{other}{name}") for name in ("nu_log", "theta_log", "gamma_log", "D")}
    pairs = {
        f"{own}{name}": take(f"{other}{name}_re", f"{other}{name}_im", change=lambda re, im: torch.stack([re, im], -1))
        for name in ("B", "C")
    }
    return same | pairs
