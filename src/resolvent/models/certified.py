"""Models with a prescribed gain: how they are built, and which settings are refused, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields

from resolvent.blocks.certified.head import LipschitzReadout
from resolvent.blocks.certified.normalised import NormalisedLRU
from resolvent.blocks.certified.residual import LipschitzResidual
from resolvent.blocks.certified.spectral import Spectral
from resolvent.blocks.norm import make_norm
from resolvent.blocks.stack import Stack
from resolvent.blocks.tower import Tower
from resolvent.layers.l2ru.layer import L2RU
from resolvent.layers.lru import LRU
from resolvent.layers.precision import HALF
from resolvent.lowering.describe import describe
from resolvent.lowering.program import Recurrence, walk
from resolvent.models import config as c
from resolvent.models.model import Model, TwoTower
from resolvent.ssm.part import Part, chained


def certified_model(config: c.ModelConfig) -> Model:
    """E, 1-Lipschitz residual blocks, pooling, hidden layer, H: |E| <= 1 and |H| <= gain, so gain bounds the model.

    Holds for sequences of every length, from a zero (or any fixed) initial state, in evaluation and in training mode.
    """
    for reason in _refusals(config):
        raise ValueError(f"build_model: a certified model cannot have {reason}")
    block, head, how = config.block, config.head, config.certified
    assert how is not None
    assert isinstance(block, c.LipschitzConfig)
    assert isinstance(config.input, c.ChannelsConfig)
    assert isinstance(head, c.ClassifierConfig | c.RegressionConfig)
    d, bias = config.d_model, how.kind == "lipschitz"
    blocks = [LipschitzResidual(make_bounded(d, block.layer), block.sigma, bias=bias) for _ in range(config.layers)]
    none = make_norm("none", d)
    tower = Tower(Spectral(config.input.channels, d, bias=config.input.bias), Stack(blocks), input_norm=none,
                  final_norm=none)  # fmt: skip
    outputs = head.classes if isinstance(head, c.ClassifierConfig) else head.outputs
    hidden = head.hidden if isinstance(head, c.ClassifierConfig) else 0
    readout = LipschitzReadout(
        d, outputs, head.pooling, gain=how.gain, memory=how.memory, hidden=hidden, bias=head.bias and bias
    )
    return Model(config, tower, readout)


def make_bounded(d_model: int, layer: c.L2RUConfig | c.NormalisedLRUConfig) -> L2RU | NormalisedLRU:
    """The recurrence of prescribed gain that the settings describe."""
    if isinstance(layer, c.NormalisedLRUConfig):
        inner = LRU(d_model, layer.d_state, r_min=layer.r_min, r_max=layer.r_max, max_phase=layer.max_phase, lr=None)
        return NormalisedLRU(inner, layer.gamma, trainable_gamma=layer.trainable_gamma)
    return L2RU(d_model, **{f.name: getattr(layer, f.name) for f in fields(layer)})


def verify_certified(model: Model) -> float:
    """The bound from the current weights, checked against the prescribed gain; a ValueError where it does not hold.

    Every L2RU must prove its gain by its certificate, every normalised LRU by its closed-form bound, and the product of
    all constants must not exceed the gain.

    Examples:
        >>> rv.models.verify_certified(rv.models.pretrained("digits-l2ru-certified")) <= 5.001
        True
    """
    how = model.config.certified
    if how is None:
        raise ValueError("verify_certified: expected a certified model, got one without a CertifiedConfig.")
    for name, value in model.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(
                f"verify_certified: {name} holds NaN or infinity, so nothing is certified; load other weights."
            )
    require_precision("verify_certified", model)
    for node in walk(describe(model).chain):
        if isinstance(node, Recurrence) and not _is_proven(node):
            raise ValueError(
                f"verify_certified: the certificate of {node.name} does not hold for these weights; do not use them."
            )
    bound = by_construction(model.gain_parts())
    if not bound <= how.gain:
        raise ValueError(
            f"verify_certified: the weights give a bound of {bound}, above the prescribed gain {how.gain}."
        )
    return bound


def require_precision(where: str, model: Model | TwoTower) -> None:
    """A prescribed gain is proven for maps that are rounded to float32 at most."""
    found = {p.dtype for p in model.parameters()} & set(HALF)
    if found:
        raise ValueError(f"{where}: no gain holds for maps rounded to {found.pop()}; convert with model.float().")


def _is_proven(node: Recurrence) -> bool:
    layer = node.module
    if node.kind == "normalised_lru":
        return bool(layer.gain() <= float(layer.gamma.detach()))
    return node.kind != "l2ru" or bool(layer.certificate().holds)


def by_construction(parts: Iterable[Part]) -> float:
    """The product of the constants that parts have by construction, without H-infinity norms."""
    found = chained(list(parts))
    return math.inf if found is None else found


def _refusals(config: c.ModelConfig) -> Iterator[str]:
    how, head = config.certified, config.head
    assert how is not None
    if not isinstance(config.block, c.LipschitzConfig):
        yield f"{type(config.block).__name__} blocks: their gain is not prescribed; use block=LipschitzConfig(...)."
    for name, norm in {"norm": config.norm, "input_norm": config.input_norm}.items():
        if norm != "none":
            yield (
                f'{name}="{norm}": a norm divides by a statistic of its input, so its slope is unbounded near zero '
                f'(batch norm: not bounded beforehand); use {name}="none".'
            )
    if config.dropout:
        yield f"dropout={config.dropout}: in training it multiplies what it keeps by 1 / (1 - p); use dropout=0."
    if config.ads is not None:
        yield "adaptive scaling: a product of features has no Lipschitz constant; use ads=None."
    if isinstance(config.input, c.TokensConfig):
        yield "tokens as input: they have no distance in L2; use ChannelsConfig (for example on embeddings)."
    if isinstance(head, c.RetrievalConfig):
        yield "a retrieval head: it multiplies two documents; use a ClassifierConfig or RegressionConfig."
    elif isinstance(head, c.LevelsConfig):
        yield "levels in the head: they have no rule for a Lipschitz constant; use a ClassifierConfig."
    elif isinstance(head, c.LanguageConfig):
        yield "a language head: it answers with tokens; use a ClassifierConfig or RegressionConfig."
    elif how.kind == "gain":
        yield from _bias_refusals(config.input, head)
    if isinstance(head, c.ClassifierConfig) and head.std is not None:
        yield f"std={head.std} in the head: the decoder starts at its capped norm; use std=None."


def _bias_refusals(entry: c.InputConfig, head: c.ClassifierConfig | c.RegressionConfig) -> Iterator[str]:
    why = 'it maps zero elsewhere, so |f(u)| <= gain |u| fails at u = 0; use bias=False, or kind="lipschitz"'
    if isinstance(entry, c.ChannelsConfig) and entry.bias:
        yield f"a bias in its input: {why}."
    if head.bias:
        yield f"a bias in its head: {why}."
