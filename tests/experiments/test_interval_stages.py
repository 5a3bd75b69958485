"""Models of this library as stages: the same numbers, sound bounds, and refusals by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers import assert_close
from resolvent.analysis import certify_linf, linf_radius
from resolvent.analysis.certificates.gain import NoBound
from resolvent.analysis.certificates.interval_stages import run
from resolvent.commands.certify.stages import stages_of
from resolvent.models import ModelConfig, build_model
from resolvent.models import layer_config as lc
from resolvent.models.config import (
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    LipschitzConfig,
    MambaConfig,
    ResidualConfig,
    TokensConfig,
)

LAYERS = {
    "S4D": lc.S4DConfig(d_state=4),
    "S4D both": lc.S4DConfig(d_state=4, bidirectional=True),
    "S4": lc.S4Config(d_state=4),
    "S5": lc.S5Config(d_state=4),
    "S5 both": lc.S5Config(d_state=4, bidirectional=True),
    "LRU": lc.LRUConfig(d_state=4),
}


def model(block: object, **change: object) -> nn.Module:
    settings = {"d_model": 4, "layers": 2, "norm": "none", "input": ChannelsConfig(2), "head": ClassifierConfig(3)}
    torch.manual_seed(0)
    return build_model(ModelConfig(block=block, **{**settings, **change})).double().eval()


def check(f: nn.Module, stages: list[object], x: torch.Tensor) -> None:
    """The stages are the model, and what they certify holds on random points and corners of the ball."""
    with torch.no_grad():
        logits = f(x)
        assert_close(run(stages, x), logits)
        y = logits.argmax(1)
        eps = linf_radius(stages, x, y, steps=8)
        assert bool((eps > 0).all())
        margin = certify_linf(stages, x, y, eps).margin
        noise = 2 * torch.rand(60, *x.shape, dtype=torch.float64) - 1
        noise[::2] = noise[::2].sign()
        z = f((x + eps[:, None, None] * noise).flatten(0, 1)).unflatten(0, (60, len(x)))
        own = z.gather(2, y.expand(60, -1)[..., None])[..., 0]
        rest = z.scatter(2, y.expand(60, -1)[..., None], -math.inf).amax(2)
        assert bool((own - rest >= margin - 1e-12).all())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mixer", ["linear", "mlp"])
def test_residual_models(name: str, mixer: str) -> None:
    f = model(ResidualConfig(layer=LAYERS[name], mixer=mixer))
    check(f, stages_of(f, 9), torch.randn(2, 9, 2, dtype=torch.float64))


def test_batch_norm_last_step_and_hidden_head() -> None:
    f = model(ResidualConfig(mixer="none"), norm="batch", head=ClassifierConfig(3, "last", hidden=5))
    for module in f.modules():
        if hasattr(module, "running_var"):
            module.running_var.uniform_(0.5, 2.0)
            module.running_mean.normal_()
    check(f, stages_of(f, 7), torch.randn(2, 7, 2, dtype=torch.float64))
    with pytest.raises(NoBound, match="call eval"):
        stages_of(f.train(), 7)


@pytest.mark.parametrize("sigma", ["sandwich", "relu", "tanh"])
@pytest.mark.parametrize("pooling", ["state", "mean"])
def test_certified_models(sigma: str, pooling: str) -> None:
    f = model(LipschitzConfig(sigma=sigma), head=ClassifierConfig(3, pooling), certified=CertifiedConfig(2.0, memory=4))
    check(f, stages_of(f, 6), torch.randn(2, 6, 2, dtype=torch.float64))


def test_lengths_and_embeddings() -> None:
    f = model(ResidualConfig(mixer="linear"), input=TokensConfig(7))
    tokens, lengths = torch.randint(7, (2, 6)), torch.tensor([4, 6])
    e = f.embed(tokens).detach()
    assert_close(run(stages_of(f, 6, lengths), e), f.from_embedding(e, lengths).detach())


@pytest.mark.parametrize(
    ("block", "change", "words"),
    [
        (ResidualConfig(mixer="linear"), {"norm": "layer"}, r"norm \(LayerNorm\)"),
        (ResidualConfig(), {}, r"mixer \(Mixer\) .* glu multiplies by a sigmoid"),
        (MambaConfig(), {}, "Mamba"),
        (ResidualConfig(mixer="linear"), {"head": ClassifierConfig(3, "max")}, r"head.pool \(max\)"),
        (LipschitzConfig(sigma="gate"), {"certified": CertifiedConfig(1.0)}, r"sigma \(Gate\)"),
    ],
    ids=["LayerNorm", "GLU", "Mamba", "max", "gate"],
)
def test_refusals_name_the_component(block: object, change: dict[str, object], words: str) -> None:
    with pytest.raises(NoBound, match=words):
        stages_of(model(block, **change), 5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_padded_sequences_in_either_direction(name: str, pooling: str) -> None:
    """Each sample is bounded as its short sequence alone is, whatever stands in its padding."""
    f = model(ResidualConfig(layer=LAYERS[name], mixer="mlp"), head=ClassifierConfig(3, pooling))
    check_padded(f)


@pytest.mark.parametrize("pooling", ["state", "mean"])
def test_padded_certified_models(pooling: str) -> None:
    check_padded(model(LipschitzConfig(), head=ClassifierConfig(3, pooling), certified=CertifiedConfig(2.0, memory=4)))


def check_padded(f: nn.Module) -> None:
    lengths = torch.tensor([3, 7, 5])
    x = torch.randn(3, 7, 2, dtype=torch.float64)
    x[torch.arange(7) >= lengths[:, None]] = 40.0
    stages = stages_of(f, 7, lengths)
    with torch.no_grad():
        logits = f(x, lengths)
    assert_close(run(stages, x), logits)
    y = logits.argmax(1)
    found = certify_linf(stages, x, y, 1e-3, lengths=lengths)
    assert bool(found.certified.all())
    for i, l in enumerate(lengths.tolist()):
        alone = certify_linf(stages_of(f, l), x[i : i + 1, :l], y[i : i + 1], 1e-3)
        assert_close(found.margin[i : i + 1], alone.margin, tolerance=1e-6)  # lines of wider boxes
