"""The classifier that the published S5 and LRU codes share: encoder, layers_0.., norm, GLU, mean, decoder, in flax.

Their Dense kernels are (in, out). Their models end in log_softmax; ours return the logits before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from resolvent.blocks.mixer import MixerKind
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.foreign.fill import Take, Weights, fill_model, take
from resolvent.models.layer_config import LRUConfig, S5Config
from resolvent.models.model import Model

Halves = Callable[[Tensor], Tensor]
EPS = {"layer": 1e-6, "batch": 1e-5}  # flax's own


def import_stack(
    weights: Weights,
    layer: S5Config | LRUConfig,
    table: Callable[[str, str], dict[str, Take]],
    *,
    norm_name: str = "norm",
    prenorm: bool = False,
    activation: Literal["full_glu", "half_glu1", "half_glu2", "gelu"] | None = None,
    pooling: Literal["mean", "last"] = "mean",
    norm_eps: float | None = None,
) -> Model:
    """table(own, other) maps the sequence layer's parameters, given both prefixes.

    activation   None: full_glu if there is an out1, gelu if there is no out2; half_glu1 and half_glu2 have the
                 same names, so one of them must be given
    """
    channels, d = weights.shape("encoder.encoder.kernel", 2)
    layers = _count(weights)
    batch = f"encoder.layers_0.{norm_name}.mean" in weights
    norm: Literal["batch", "layer"] = "batch" if batch else "layer"
    mixer = _activation(weights, activation)
    config = ModelConfig(
        ChannelsConfig(channels),
        ResidualConfig(layer, mixer, "gelu_tanh"),
        ClassifierConfig(weights.shape("decoder.kernel", 2)[1], pooling),
        d_model=d,
        layers=layers,
        norm=norm,
        norm_eps=EPS[norm] if norm_eps is None else norm_eps,
        prenorm=prenorm,
    )
    made = _dense("tower.entry.", "encoder.encoder.") | _dense("head.out.", "decoder.")
    for i in range(layers):
        own, other = f"tower.body.blocks.{i}.", f"encoder.layers_{i}."
        made |= table(f"{own}layer.", f"{other}seq.") | _norm(f"{own}norm.", f"{other}{norm_name}.", batch)
        if mixer == "full_glu":
            made |= _glu(f"{own}mixer.linear.", other)
        elif mixer != "gelu":
            made |= _dense(f"{own}mixer.linear.", f"{other}out2.")
    return fill_model(config, weights, made)


def _count(weights: Weights) -> int:
    numbers = [n.split("layers_")[1].split(".")[0] for n in weights.tensors if n.startswith("encoder.layers_")]
    found = [int(number) for number in numbers if number.isdigit()]
    return max(found) + 1 if found else weights.count("encoder.layers_")


def _activation(weights: Weights, given: MixerKind | None) -> MixerKind:
    if given is not None:
        return given
    if "encoder.layers_0.out1.kernel" in weights:
        return "full_glu"
    if "encoder.layers_0.out2.kernel" not in weights:
        return "gelu"
    raise ValueError("import_weights: half_glu1 and half_glu2 have the same names; say which with activation=...")


def _dense(own: str, other: str) -> dict[str, Take]:
    return {f"{own}weight": take(f"{other}kernel", change=lambda W: W.mT), f"{own}bias": take(f"{other}bias")}


def _glu(own: str, other: str) -> dict[str, Take]:
    """value * sigmoid(gate): out1 stacked on out2."""
    return {
        f"{own}weight": take(f"{other}out1.kernel", f"{other}out2.kernel", change=lambda a, b: torch.cat([a.mT, b.mT])),
        f"{own}bias": take(f"{other}out1.bias", f"{other}out2.bias", change=lambda a, b: torch.cat([a, b])),
    }


def _norm(own: str, other: str, batch: bool) -> dict[str, Take]:
    table = {f"{own}weight": take(f"{other}scale"), f"{own}bias": take(f"{other}bias")}
    stats = {f"{own}running_mean": take(f"{other}mean"), f"{own}running_var": take(f"{other}var")}
    return table | stats if batch else table
