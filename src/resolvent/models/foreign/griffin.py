"""Griffin and Hawk language models: recurrentgemma's torch code, and transformers' RecurrentGemmaForCausalLM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.models.config import GriffinConfig, HawkConfig, LanguageConfig, ModelConfig, TokensConfig
from resolvent.models.foreign.fill import Take, Weights, fill_model, take
from resolvent.models.foreign.read import require_settings
from resolvent.models.model import Model

WINDOW = 2048  # reach of the published models
SOFT_CAP = 30.0
NORM_EPS = 1e-6
SETTINGS = {"model_type": "recurrent_gemma", "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5}  # fmt: skip


def import_recurrentgemma(
    weights: Weights,
    *,
    window: int = WINDOW,
    soft_cap: float | None = SOFT_CAP,
    norm_eps: float = NORM_EPS,
    scaled: bool = True,
) -> Model:
    """A language model (b, l) -> logits (b, l, vocab), from the names of recurrentgemma's torch code.

    window     its attention_window_size: a query sees itself and this many positions before it
    soft_cap   its logits_soft_cap; None: uncapped logits
    scaled     its embeddings_scale_by_sqrt_dim
    """
    return _import(_rename(weights), window + 1, soft_cap, norm_eps, scaled)


def import_transformers_griffin(
    weights: Weights,
    settings: dict[str, Any],
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    norm_eps: float | None = None,
) -> Model:
    """The same from transformers; unspecified facts come from the model's config, else from the published models.

    window   its attention_window_size: the number of positions a query sees, including itself
    """
    require_settings(settings, SETTINGS)
    weights = Weights(weights.source, {n.removeprefix("model."): t for n, t in weights.tensors.items()})
    reach = settings.get("attention_window_size", WINDOW) if window is None else window
    cap = settings.get("logits_soft_cap", SOFT_CAP) if soft_cap is None else soft_cap
    eps = settings.get("rms_norm_eps", NORM_EPS) if norm_eps is None else norm_eps
    if "lm_head.weight" in weights and not torch.equal(weights["lm_head.weight"], weights["embed_tokens.weight"]):
        raise ValueError("import_weights: expected an lm_head tied to the embedding, got one of its own.")
    return _import(weights, reach, cap, eps, True)


def _import(weights: Weights, reach: int, soft_cap: float | None, norm_eps: float, scaled: bool) -> Model:
    """From transformers' names without `model.`"""
    vocab, d = weights.shape("embed_tokens.weight", 2)
    layers = weights.count("layers.")
    block = _block_config(weights, layers, d, reach)
    scale = float(torch.tensor(math.sqrt(d)).bfloat16()) if scaled else 1.0  # rounded as in training
    config = ModelConfig(
        TokensConfig(vocab, scale=scale),
        block,
        LanguageConfig(True, soft_cap),
        d_model=d,
        layers=layers,
        norm="rms",
        norm_eps=norm_eps,
        final_norm=True,
    )
    table = {"tower.entry.weight": take("embed_tokens.weight"), "tower.final_norm.scale": take("final_norm.weight")}
    for i in range(layers):
        attends = isinstance(block, GriffinConfig) and i % 3 == 2
        table |= _layer(f"tower.body.blocks.{2 * i}.", f"layers.{i}.", attends)
        table |= _feed(f"tower.body.blocks.{2 * i + 1}.", f"layers.{i}.")
    return fill_model(config, weights, table, ignored=("lm_head.weight",))


def _block_config(weights: Weights, layers: int, d: int, reach: int) -> HawkConfig | GriffinConfig:
    attends = [f"layers.{i}.temporal_block.q_proj.weight" in weights for i in range(layers)]
    if attends != [any(attends) and i % 3 == 2 for i in range(layers)]:
        message = ", ".join("attention" if here else "recurrent" for here in attends)
        raise ValueError(f"import_weights: expected every third layer to attend, or none; got {message}.")
    lru = "layers.0.temporal_block.rg_lru."
    heads, k, _ = weights.shape(f"{lru}input_gate_weight", 3)
    wide = weights.shape("layers.0.mlp_block.down_proj.weight", 2)[1]
    if wide % d:
        raise ValueError(f"import_weights: expected an MLP that is a multiple of {d} channels wide, got {wide}.")
    width = weights.shape("layers.0.temporal_block.conv_1d.weight", 3)[2]
    shared: dict[str, Any] = {"inner": heads * k, "heads": heads, "width": width, "expand": wide // d}
    if not any(attends):
        return HawkConfig(**shared)
    keys = weights.shape("layers.2.temporal_block.k_proj.weight", 2)[0]
    return GriffinConfig(**shared, attention_heads=heads, kv_heads=keys * heads // d, window=reach)


def _layer(own: str, other: str, attends: bool) -> dict[str, Take]:
    ours, theirs = f"{own}layer.", f"{other}temporal_block."
    table = {f"{own}norm.scale": take(f"{other}temporal_pre_norm.weight")}
    if attends:
        names = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "o_proj"}
        table |= {f"{ours}{name}": take(f"{theirs}{their}.weight") for name, their in names.items()}
        return table | {f"{ours}b_o": take(f"{theirs}o_proj.bias")}
    for name, their in (("gate", "linear_y"), ("enter", "linear_x"), ("leave", "linear_out")):
        table |= {f"{ours}{name}.{part}": take(f"{theirs}{their}.{part}") for part in ("weight", "bias")}
    gate = f"{theirs}rg_lru."
    return table | {
        f"{ours}conv.weight": take(f"{theirs}conv_1d.weight", change=lambda w: w.squeeze(1)),
        f"{ours}conv.bias": take(f"{theirs}conv_1d.bias"),
        f"{ours}rglru.L": take(f"{gate}recurrent_param"),
        f"{ours}rglru.W_x": take(f"{gate}input_gate_weight"),
        f"{ours}rglru.b_x": take(f"{gate}input_gate_bias", change=Tensor.flatten),
        f"{ours}rglru.W_a": take(f"{gate}recurrent_gate_weight"),
        f"{ours}rglru.b_a": take(f"{gate}recurrent_gate_bias", change=Tensor.flatten),
    }


def _feed(own: str, other: str) -> dict[str, Take]:
    mlp, ours = f"{other}mlp_block.", f"{own}layer.inner."
    both: Callable[..., Tensor] = lambda a, b: torch.cat([a, b])  # noqa: E731
    return {
        f"{own}norm.scale": take(f"{other}channel_pre_norm.weight"),
        f"{ours}up.weight": take(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight", change=both),
        f"{ours}up.bias": take(f"{mlp}gate_proj.bias", f"{mlp}up_proj.bias", change=both),
        f"{ours}down.weight": take(f"{mlp}down_proj.weight"),
        f"{ours}down.bias": take(f"{mlp}down_proj.bias"),
    }


# recurrentgemma's names, and transformers' names for the same tensors
_PARTS = (
    ("embedder.input_embedding", "embed_tokens.weight"),
    ("pre_norm.scale", "pre_norm.weight"),
    ("final_norm.scale", "final_norm.weight"),
    ("recurrent_block.", "temporal_block."),
    ("attention_block.proj_q", "temporal_block.q_proj"),
    ("attention_block.proj_k", "temporal_block.k_proj"),
    ("attention_block.proj_v", "temporal_block.v_proj"),
    ("attention_block.proj_final", "temporal_block.o_proj"),
    ("rg_lru.a_param", "rg_lru.recurrent_param"),
    ("rg_lru.input_gate.w", "rg_lru.input_gate_weight"),
    ("rg_lru.input_gate.b", "rg_lru.input_gate_bias"),
    ("rg_lru.a_gate.w", "rg_lru.recurrent_gate_weight"),
    ("rg_lru.a_gate.b", "rg_lru.recurrent_gate_bias"),
    ("mlp_block.ffw_down", "mlp_block.down_proj"),
)


def _rename(weights: Weights) -> Weights:
    found: dict[str, Tensor] = {}
    for name, tensor in weights.tensors.items():
        new = name.replace("blocks.", "layers.", 1) if name.startswith("blocks.") else name
        for theirs, ours in _PARTS:
            new = new.replace(theirs, ours)
        if new.endswith("ffw_up.w") and tensor.dim() == 3 and tensor.shape[0] == 2:  # (2, d, e): gate, value
            found |= {
                new.replace("ffw_up.w", f"{part}_proj.weight"): t.mT
                for part, t in zip(("gate", "up"), tensor, strict=True)
            }
        elif new.endswith("ffw_up.b") and tensor.shape[:1] == (2,):
            found |= {
                new.replace("ffw_up.b", f"{part}_proj.bias"): t.flatten()
                for part, t in zip(("gate", "up"), tensor, strict=True)
            }
        elif new.endswith("conv_1d.w"):  # (w, d), current input last
            found[new.replace("conv_1d.w", "conv_1d.weight")] = tensor.mT[:, None]
        else:
            found[new.replace("conv_1d.b", "conv_1d.bias") if new.endswith("conv_1d.b") else new] = tensor
    return Weights(weights.source, found)
