"""Mamba language models: mamba_ssm's MambaLMHeadModel, transformers' MambaForCausalLM, mambapy's LM.

All three name a layer's tensors norm, in_proj, conv1d, x_proj, dt_proj, A_log, D, out_proj; other names differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.stack import Stack
from resolvent.models.build import make_tower
from resolvent.models.config import LanguageConfig, MambaConfig, ModelConfig, TokensConfig
from resolvent.models.foreign.fill import Take, Weights, fill, fill_model, take
from resolvent.models.foreign.read import require_settings
from resolvent.models.model import Model

NORM_EPS = 1e-5  # in all three
SETTINGS = {"model_type": "mamba", "hidden_act": "silu"}  # FalconMamba has the same names, but norms without weights


def import_mamba(
    weights: Weights, settings: dict[str, Any] | None = None, *, norm_eps: float | None = None
) -> Model | Stack:
    """A language model (b, l) -> logits (b, l, vocab). Without an lm_head the output is tied to the embedding.

    Layers without embedding (mambapy's Mamba) become a stack (b, l, d) -> (b, l, d).
    """
    require_settings(settings or {}, SETTINGS)
    weights = _rename(weights)
    eps = (settings or {}).get("layer_norm_epsilon", NORM_EPS) if norm_eps is None else norm_eps
    d, layers = weights.shape("layers.0.norm.weight", 1)[0], weights.count("layers.")
    block = _block_config(weights, d)
    config = ModelConfig(block=block, d_model=d, layers=layers, norm="rms", norm_eps=eps, final_norm=True)
    if "embedding.weight" not in weights:
        return fill(make_tower(config).body, weights, _layers("blocks.", block, layers))
    vocab, tied = weights.shape("embedding.weight", 2)[0], _is_tied(weights)
    config = replace(config, input=TokensConfig(vocab), head=LanguageConfig(tied))
    table = {"tower.entry.weight": take("embedding.weight"), "tower.final_norm.scale": _norm("norm_f.weight")}
    table |= _layers("tower.body.blocks.", block, layers)
    if not tied:
        table["head.out.weight"] = take("lm_head.weight")
    return fill_model(config, weights, table, ignored=("lm_head.weight",) if tied else ())


def _block_config(weights: Weights, d: int) -> MambaConfig:
    inner, _, width = weights.shape("layers.0.mixer.conv1d.weight", 3)
    if inner % d:
        raise ValueError(f"import_weights: expected an inner width that is a multiple of {d} channels, got {inner}.")
    return MambaConfig(
        d_state=weights.shape("layers.0.mixer.A_log", 2)[1],
        expand=inner // d,
        width=width,
        dt_rank=weights.shape("layers.0.mixer.dt_proj.weight", 2)[1],
        bias="layers.0.mixer.in_proj.bias" in weights,
        conv_bias="layers.0.mixer.conv1d.bias" in weights,
    )


def _layers(own: str, block: MambaConfig, layers: int) -> dict[str, Take]:
    table: dict[str, Take] = {}
    for i in range(layers):
        table |= _layer(f"{own}{i}.", f"layers.{i}.", block)
    return table


def _rename(weights: Weights) -> Weights:
    """Rename to mamba_ssm's names without `backbone.`; transformers says embeddings, mambapy puts layers in `mamba.`"""
    found = weights.stripped("backbone.").stripped("mamba.")
    names = {"embeddings.weight": "embedding.weight"}
    return Weights(weights.source, {names.get(name, name): tensor for name, tensor in found.tensors.items()})


def _is_tied(weights: Weights) -> bool:
    if "lm_head.weight" not in weights:
        return True
    head, entry = weights["lm_head.weight"], weights["embedding.weight"]
    return head.shape == entry.shape and bool(torch.equal(head, entry))


def _norm(name: str) -> Take:
    """Their weight is our 1 + scale."""
    return take(name, change=lambda weight: weight - 1)


def _layer(own: str, other: str, block: MambaConfig) -> dict[str, Take]:
    mixer, ours = f"{other}mixer.", f"{own}layer."
    table = {
        f"{own}norm.scale": _norm(f"{other}norm.weight"),
        f"{ours}in_proj.weight": take(f"{mixer}in_proj.weight"),
        f"{ours}conv.weight": take(f"{mixer}conv1d.weight", change=_taps),
        f"{ours}ssm.x_proj": take(f"{mixer}x_proj.weight"),
        f"{ours}ssm.dt_proj": take(f"{mixer}dt_proj.weight"),
        f"{ours}ssm.dt_bias": take(f"{mixer}dt_proj.bias"),
        f"{ours}ssm.A_log": take(f"{mixer}A_log"),
        f"{ours}ssm.D": take(f"{mixer}D"),
        f"{ours}out_proj.weight": take(f"{mixer}out_proj.weight"),
    }
    if block.conv_bias:
        table[f"{ours}conv.bias"] = take(f"{mixer}conv1d.bias")
    if block.bias:
        table |= {f"{ours}{name}.bias": take(f"{mixer}{name}.bias") for name in ("in_proj", "out_proj")}
    return table


def _taps(weight: Tensor) -> Tensor:
    return weight.squeeze(1)
