"""From a ModelConfig to a model. A new block kind is one case in `make_block`; layers are in `layer_config`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from torch import nn

from resolvent.blocks.ads import AdS
from resolvent.blocks.block import Layer
from resolvent.blocks.certified.residual import LipschitzResidual
from resolvent.blocks.embedding import ScaledEmbedding, TokenLogits
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.head import Match, Readout
from resolvent.blocks.levels import LevelReadout
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.blocks.norm import make_norm
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.residual import Residual
from resolvent.blocks.stack import Stack
from resolvent.blocks.tower import Tower
from resolvent.layers.attention import Attention
from resolvent.layers.precision import build_in_float32
from resolvent.models import config as c
from resolvent.models import layer_config as lc
from resolvent.models.certified import certified_model, make_bounded
from resolvent.models.model import Model, TwoTower


@build_in_float32
def build_model(config: c.ModelConfig) -> Model | TwoTower:
    """A model with these settings and fresh weights: x (b, l, c) or tokens (b, l) to outputs.

    For padded sequences pass their lengths (b,): `model(x, lengths)`.

    For reproducible weights call torch.manual_seed first.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=8, layers=1))
        >>> model(torch.rand(2, 20, 1), torch.tensor([20, 7])).shape  # padded: lengths
        torch.Size([2, 10])
    """
    if not isinstance(config, c.ModelConfig):
        raise TypeError(f"build_model: expected a ModelConfig, got {type(config).__name__}; see models.presets.")
    if config.certified is not None:
        return certified_model(config)
    tower = make_tower(config)
    d, head = config.d_model, config.head
    if isinstance(head, c.RetrievalConfig):
        return TwoTower(config, tower, head.pooling, Match(d, head.classes, head.hidden or d))
    if isinstance(head, c.RegressionConfig):
        return Model(config, tower, Readout(d, head.outputs, head.pooling, bias=head.bias))
    if isinstance(head, c.LanguageConfig):
        return Model(config, tower, _language_head(config, tower, head))
    if isinstance(head, c.LevelsConfig):
        return Model(config, tower, LevelReadout(d, head.classes, head.levels, bias=head.bias))
    if head.pooling == "state":
        raise ValueError(
            'build_model: pooling="state" belongs to certified models; set certified=CertifiedConfig(...).'
        )
    readout = Readout(d, head.classes, head.pooling, hidden=head.hidden, bias=head.bias, std=head.std)
    return Model(config, tower, readout)


def _language_head(config: c.ModelConfig, tower: Tower, head: c.LanguageConfig) -> Readout:
    if not isinstance(config.input, c.TokensConfig):
        raise ValueError("build_model: LanguageConfig predicts tokens and needs TokensConfig as its input.")
    vocab, d, entry = config.input.vocab, config.d_model, cast(nn.Embedding, tower.entry)
    return Readout(d, vocab, "none", out=TokenLogits(d, vocab, entry if head.tied else None, head.soft_cap))


def make_tower(config: c.ModelConfig) -> Tower:
    blocks = [block for i in range(config.layers) for block in make_block(config, i)]
    return Tower(
        _entry(config),
        Stack(blocks),
        input_norm=make_norm(config.input_norm, config.d_model, config.norm_eps),
        final_norm=make_norm(config.norm if config.final_norm else "none", config.d_model, config.norm_eps),
        dropout=config.dropout,
    )


def make_layer(d_model: int, config: lc.LayerConfig) -> Layer:
    """The layer that the settings describe; their fields are its keyword arguments.

    Examples:
        >>> rv.models.make_layer(4, rv.models.S5Config(8))(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """
    make: Any = lc.LAYERS[type(config)]
    return make(d_model, **{f.name: getattr(config, f.name) for f in fields(config)})


def make_block(config: c.ModelConfig, index: int) -> list[Layer]:
    """The residual parts of block number `index`: one for S4-style and Mamba blocks, two where an MLP has its own.

    Examples:
        >>> len(rv.models.make_block(rv.ModelConfig(d_model=8, layers=1), 0))
        1
    """
    d, block = config.d_model, config.block
    match block:
        case c.ResidualConfig():
            return [_residual(config, make_layer(d, block.layer), _ads(config, d), _mixer(config, block))]
        case c.LipschitzConfig():
            return [LipschitzResidual(make_bounded(d, block.layer), block.sigma)]
        case c.MambaConfig():
            settings = {f.name: getattr(block, f.name) for f in fields(block) if f.name != "layer"}
            inner = block.expand * d
            mamba = Mamba(d, **settings, ads=_ads(config, inner), ssm=_inside(inner, block.layer))
            return [_residual(config, mamba)]
        case c.MegaConfig():
            return [_mega(config, block), _feed(config, MLP(d, block.ffn, act="silu"))]
        case c.H3Config():
            ssm = _inside(d // block.head_dim, block.layer)
            h3 = H3(d, block.d_state, head_dim=block.head_dim, ads=_ads(config, d), ssm=ssm)
            return [_residual(config, h3), _feed(config, MLP(d, block.expand * d))]
        case c.AttentionConfig():
            return [_residual(config, _attention(config, block)), _feed(config, MLP(d, block.expand * d))]
        case _:
            return [_residual(config, _temporal(config, block, index)), _feed(config, GatedMLP(d, block.expand))]


def _inside(channels: int, config: lc.LayerConfig | None) -> Layer | None:
    return None if config is None else make_layer(channels, config)


def _temporal(config: c.ModelConfig, block: c.HawkConfig | c.GriffinConfig, index: int) -> Layer:
    d = config.d_model
    if isinstance(block, c.GriffinConfig) and index % 3 == 2:
        return Attention(
            d,
            heads=block.attention_heads,
            kv_heads=block.kv_heads,
            kind="local",
            size=block.window,
            position="half-rotary",
        )
    ads = _ads(config, block.inner or d)
    return Hawk(d, inner=block.inner, heads=block.heads, width=block.width, ads=ads)


def _attention(config: c.ModelConfig, block: c.AttentionConfig) -> Attention:
    if config.ads is not None:
        raise ValueError("build_model: attention has no state-space layer to scale; leave ads out.")
    kind = "full" if block.window is None else "local"
    return Attention(config.d_model, heads=block.heads, kind=kind, size=block.window, bidirectional=block.bidirectional)


def _mega(config: c.ModelConfig, block: c.MegaConfig) -> Layer:
    names = ("z", "hidden", "d_state", "attention", "chunk", "max_length", "bidirectional", "unmasked")
    same = {name: getattr(block, name) for name in names}
    return GatedAttention(config.d_model, **same, **_around(config), ads=_ads(config, config.d_model))


def _residual(
    config: c.ModelConfig, layer: Layer, ads: nn.Module | None = None, mixer: nn.Module | None = None
) -> Residual:
    skip = config.block.skip if isinstance(config.block, c.ResidualConfig) else True
    return Residual(layer, mixer=mixer, ads=ads, skip=skip, **_around(config))


def _around(config: c.ModelConfig) -> dict[str, Any]:
    """The keyword arguments shared by all residual parts."""
    return {name: getattr(config, name) for name in ("norm", "norm_eps", "prenorm", "dropout")}


def _feed(config: c.ModelConfig, inner: nn.Module) -> Residual:
    return _residual(config, Pointwise(config.d_model, inner))


def _mixer(config: c.ModelConfig, block: c.ResidualConfig) -> Mixer:
    return Mixer(
        config.d_model,
        block.mixer,
        act=block.activation,
        final=block.final_activation,
        dropout=config.dropout,
        expand=block.expand,
    )


def _ads(config: c.ModelConfig, width: int) -> AdS | None:
    return None if config.ads is None else AdS(width, config.ads.kind, shift=config.ads.shift)


def _entry(config: c.ModelConfig) -> nn.Embedding | nn.Linear:
    if isinstance(config.input, c.ChannelsConfig):
        return nn.Linear(config.input.channels, config.d_model, bias=config.input.bias)
    tokens, d = config.input, config.d_model
    scaled = tokens.scale != 1.0
    embedding = ScaledEmbedding(tokens.vocab, d, tokens.scale) if scaled else nn.Embedding(tokens.vocab, d)
    nn.init.normal_(embedding.weight, std=tokens.std)
    return embedding


__all__ = ["build_model", "make_block", "make_layer", "make_tower"]
