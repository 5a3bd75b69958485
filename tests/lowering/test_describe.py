"""The description of every model that can be built, run node by node, against the modules themselves."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from helpers import assert_close, stir
from resolvent.blocks import GatedMLP, Residual, SandwichMLP, Stack
from resolvent.blocks.mixer import KINDS
from resolvent.layers import EMA, S4D, Layer
from resolvent.lowering import eager
from resolvent.lowering import program as p
from resolvent.lowering.describe import describe
from resolvent.models import build_model
from resolvent.models import config as c
from resolvent.models import layer_config as lc

SMALL = c.ModelConfig(c.ChannelsConfig(2), head=c.ClassifierConfig(3), d_model=4, layers=2)
LAYERS: dict[str, Any] = {
    "s4": lc.S4Config(4), "s4d": lc.S4DConfig(4), "dss": lc.DSSConfig(4), "s5": lc.S5Config(4), "lru": lc.LRUConfig(4),
    "l2ru": lc.L2RUConfig(4), "ema": lc.EMAConfig(3), "s6": lc.S6Config(3), "scalar s6": lc.ScalarS6Config(3),
    "rglru": lc.RGLRUConfig(2), "shortconv": lc.ShortConvConfig(), "gru": lc.GRUConfig(),
    "s4d both ways": lc.S4DConfig(4, bidirectional=True), "ema both ways": lc.EMAConfig(3, bidirectional=True),
}  # fmt: skip
BLOCKS: dict[str, Any] = {
    **{name: c.ResidualConfig(layer, "linear", final_activation="tanh") for name, layer in LAYERS.items()},
    **{f"mixer {kind}": c.ResidualConfig(lc.S4DConfig(4), kind, "silu") for kind in KINDS},
    "no skip": c.ResidualConfig(lc.S4DConfig(4), skip=False),
    "mamba": c.MambaConfig(3), "mega": c.MegaConfig(3, 5, 6, 3), "mega both ways": c.MegaConfig(3, 5, 6, 3,
    bidirectional=True), "mega laplace": c.MegaConfig(3, 5, 6, 3, "laplace", 4), "hawk": c.HawkConfig(6),
    "griffin": c.GriffinConfig(attention_heads=1, window=4), "h3": c.H3Config(4), "h3 heads": c.H3Config(4, 2),
    "h3 s5": c.H3Config(4, 2, layer=lc.S5Config(4)), "h3 s4": c.H3Config(4, layer=lc.S4Config(4)),
    "mamba rglru": c.MambaConfig(layer=lc.RGLRUConfig()),
    "attention": c.AttentionConfig(2),
}  # fmt: skip
CONFIGS: dict[str, c.ModelConfig] = {
    **{name: replace(SMALL, block=block) for name, block in BLOCKS.items()},
    **{f"{name} ads": replace(SMALL, block=BLOCKS[name], ads=c.AdSConfig("sigmoid", shift), prenorm=False)
       for name in ("s4d", "mamba", "mega", "hawk", "h3") for shift in (False, True)},
    **{f"norm {norm}": replace(SMALL, norm=norm, input_norm=norm, final_norm=True, prenorm=prenorm)
       for norm in ("layer", "batch", "rms", "scale", "none") for prenorm in (True, False)},
    **{f"pool {kind}": replace(SMALL, head=c.RegressionConfig(2, kind)) for kind in ("mean", "last", "max", "none")},
    "hidden": replace(SMALL, head=c.ClassifierConfig(3, "last", 5, std=0.1)),
    "levels": replace(SMALL, head=c.LevelsConfig(3, 4)),
    "tokens": replace(SMALL, input=c.TokensConfig(7)),
    "language": replace(SMALL, input=c.TokensConfig(7), head=c.LanguageConfig()),
    "language, scaled and capped": replace(SMALL, input=c.TokensConfig(7, scale=2.0), norm_eps=0.1,
                                           head=c.LanguageConfig(False, 5.0)),
    "mamba, biased": replace(SMALL, block=c.MambaConfig(3, dt_rank=2, bias=True, conv_bias=False)),
    "mega unmasked": replace(SMALL, block=c.MegaConfig(3, 5, 6, 3, unmasked=True)),
    "l2ru dense": replace(SMALL, block=c.ResidualConfig(lc.L2RUConfig(5, form="dense"))),
    "retrieval": replace(SMALL, input=c.TokensConfig(7), head=c.RetrievalConfig(2)),
    **{f"certified {sigma}": replace(SMALL, norm="none", block=c.LipschitzConfig(layer, sigma),
                                     head=c.ClassifierConfig(3, pooling, 5), certified=c.CertifiedConfig(2.0, memory=4))
       for sigma, layer, pooling in (("sandwich", lc.L2RUConfig(4), "state"),
                                     ("gate", lc.NormalisedLRUConfig(3), "mean"),
                                     ("tanh", lc.NormalisedLRUConfig(3, trainable_gamma=True), "last"))},
}  # fmt: skip


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = build_model(CONFIGS[name]).double().eval()
    stir(model, 0.1)
    return model


def given(name: str) -> tuple[Tensor, Tensor]:
    config, pair = CONFIGS[name], name == "retrieval"
    shape = (3, 2, 9) if pair else (3, 9)
    lengths = torch.tensor([[9, 1], [4, 8], [7, 7]]) if pair else torch.tensor([9, 1, 6])
    if isinstance(config.input, c.TokensConfig):
        return torch.randint(0, 7, shape), lengths
    return torch.randn(*shape, 2, dtype=torch.float64), lengths


@pytest.mark.parametrize("name", CONFIGS)
def test_a_program_computes_what_the_model_does(name: str) -> None:
    """Values, with padding too, and gradients of the first and second order."""
    model, (x, lengths) = made(name), given(name)
    program = describe(model)
    assert not any(isinstance(node, p.Opaque) for node in p.walk(program.chain))
    for own in (None, lengths):
        assert_close(eager.run(program, x, own), model(x, own))
    if not x.is_floating_point():
        return
    found = []
    for f in (lambda x: eager.run(program, x), lambda x: model.from_embedding(model.embed(x))):
        at = x.clone().requires_grad_()
        inputs = [at, *model.parameters()]
        first = torch.autograd.grad(f(at).square().sum(), inputs, create_graph=True, allow_unused=True)
        second = torch.autograd.grad(first[0].square().sum(), inputs, allow_unused=True)
        found.append([torch.zeros(()) if g is None else g for g in (*first, *second)])
    for got, want in zip(*found, strict=True):
        assert_close(got, want, tolerance=1e-8)  # second derivatives of norms near a constant lose two digits


def test_every_class_of_node_is_met() -> None:
    met = {type(node) for name in CONFIGS for node in p.walk(describe(made(name)).chain)}
    assert met == set(eager._RUN) - {p.Opaque} | {p.Pool, p.Head, p.Match}
    assert set(get_args(c.HeadConfig)) == {type(config.head) for config in CONFIGS.values()}
    assert set(get_args(c.BlockConfig)) == {type(config.block) for config in CONFIGS.values()}


def test_weights_are_read_when_a_program_runs() -> None:
    model, (x, _) = made("s4d"), given("s4d")
    program, other = describe(model), copy.deepcopy(model)
    with torch.no_grad():
        for t in other.parameters():
            t.mul_(1.1)
    found = torch.func.functional_call(_Run(program, model), {f"model.{n}": t for n, t in other.named_parameters()}, x)
    assert_close(found, other(x))


class _Run(nn.Module):
    def __init__(self, program: p.Program, model: nn.Module) -> None:
        super().__init__()
        self.program, self.model = program, model

    def forward(self, x: Tensor) -> Tensor:
        return eager.run(self.program, x)


def test_training_drops_the_same_numbers() -> None:
    model = build_model(replace(CONFIGS["mixer glu"], dropout=0.4)).double().train()
    x, _ = given("s4d")
    found = []
    for f in (model, lambda x: eager.run(describe(model), x)):
        torch.manual_seed(3)
        found.append(f(x))
    assert_close(*found)
    assert any(isinstance(node, p.Dropout) for node in p.walk(p.settle(describe(model).chain)))
    assert not any(isinstance(node, p.Dropout) for node in p.walk(p.settle(describe(model.eval()).chain)))


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Mine(nn.Module):
    """Somebody's own model around parts of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 4)
        self.body = Stack([Residual(S4D(4, 4)), Residual(EMA(4, 3, silu=True))])
        self.out = nn.Sequential(nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.body(self.enter(x).relu())[0].mean(1))
        return out


CHANGES: dict[str, Any] = {
    "a subclass": lambda m: setattr(m.tower.body.blocks[0].mixer, "linear", Scaled(4, 4).double()),
    "a parametrisation": lambda m: parametrizations.weight_norm(m.tower.body.blocks[0].mixer.linear),
    "a hook": lambda m: m.tower.body.blocks[0].mixer.linear.register_forward_hook(lambda *a: 2 * a[2]),
    "a replaced method": lambda m: setattr(m.tower.body.blocks[0].mixer.linear, "forward", lambda x: x.cos()),
}


SQUARE = ("a subclass", "a replaced method")  # changes that keep the width, which GLU's map does not
CHANGED = [(change, kind) for change in CHANGES for kind in ("mixer linear", "mixer glu", "mixer half_glu2")
           if kind != "mixer glu" or change not in SQUARE]  # fmt: skip


@pytest.mark.parametrize(("change", "kind"), CHANGED)
def test_a_changed_part_is_run_as_a_module(change: str, kind: str) -> None:
    model, (x, _) = made(kind), given(kind)
    CHANGES[change](model)
    program = describe(model)
    assert sum(isinstance(node, p.Opaque) for node in p.walk(program.chain)) >= 1
    assert_close(eager.run(program, x), model.from_embedding(model.embed(x)))


def test_a_module_of_ones_own_is_described_inside() -> None:
    (node,) = describe(Mine()).chain
    assert isinstance(node, p.Opaque)
    assert node.stranger
    assert [inner.name for inner in node.inside] == ["enter", "body.blocks.0", "body.blocks.1", "out.0", "out.1"]
    assert [type(inner) for inner in node.inside] == [p.Linear, p.Skip, p.Skip, p.Activation, p.Linear]


def test_layers_and_blocks_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    for layer in (S4D(4, 4), EMA(4, 3, silu=True), Residual(S4D(4, 4)), Stack([Residual(S4D(4, 4))])):
        assert isinstance(layer, Layer)
        assert_close(eager.run(describe(layer.double()), x), layer(x)[0])
    for own in (
        SandwichMLP(4, (5, 6), 3, lipschitz=2.0).double(),
        SandwichMLP(4, (), 3).double(),
        GatedMLP(4).double(),
    ):
        assert_close(eager.run(describe(own), x), own(x))


def test_a_program_does_not_keep_its_model() -> None:
    model = made("s4d")
    program, seen = describe(model), weakref.ref(model)
    program = replace(program, modules=program.modules[1:])
    del model
    gc.collect()
    assert seen() is None
    assert program.network is not None


def test_names_are_places() -> None:
    for name in CONFIGS:
        model = made(name)
        for node in p.walk(describe(model).chain):
            place = node.name.rpartition(".")[0] if node.name.endswith((".share", ".pool")) else node.name
            model.get_submodule(place)
