"""Layers are built under any default dtype, on the meta device and inside `FakeTensorMode`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import resolvent as rv
from resolvent import blocks
from resolvent.conformance.cases import CASES, layer_class
from resolvent.models.config import CertifiedConfig, LipschitzConfig, MegaConfig, ResidualConfig
from resolvent.models.layer_config import LAYERS

FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("S4", {"d_model": 4, "d_state": 8, "init": "legt", "rank": 2, "discretisation": "zoh"}),
    ("S4", {"d_model": 4, "d_state": 8, "init": "fout", "rank": 3, "n_ssm": 4}),
    ("S4D", {"d_model": 3, "d_state": 10, "init": "ptd", "perturbation": 0.1}),
    ("S5", {"d_model": 3, "d_state": 5, "conjugate": False}),
    ("S5", {"d_model": 3, "d_state": 8, "c_init": "complex_normal"}),
    ("DSS", {"d_model": 3, "d_state": 5, "init": "ptd", "kernel": "softmax"}),
    ("ShortConv", {"d_model": 3, "std": 0.3}),
]
SETTINGS = [(case.layer, case.settings) for case in CASES] + FURTHER
every_setting = pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
MODELS = {
    **{kind.__name__: rv.ModelConfig(d_model=4, layers=1, block=ResidualConfig(kind())) for kind in LAYERS},
    "mega": rv.ModelConfig(d_model=4, layers=1, block=MegaConfig(z=4, hidden=8)),
    "certified": rv.ModelConfig(d_model=4, layers=1, norm="none", block=LipschitzConfig(), certified=CertifiedConfig()),
}
half_types = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_same(own: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(own.state_dict().items(), other.state_dict().values(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


@half_types
@every_setting
def test_a_half_default_gives_the_layer_of_float32_cast(name: str, settings: dict[str, Any], half: torch.dtype) -> None:
    torch.manual_seed(0)
    ready = layer_class(name)(**settings).to(half)
    x = torch.randn(2, 9, settings["d_model"]).to(half)
    with default_dtype(half):
        torch.manual_seed(0)
        layer = layer_class(name)(**settings)
        check_same(layer, ready)
        y = layer(x)[0]
        y.float().sum().backward()
    assert layer.dtype == torch.float32
    assert y.dtype == half
    assert torch.equal(y, ready(x)[0])


@half_types
@pytest.mark.parametrize("name", MODELS)
def test_a_half_default_gives_the_model_of_float32_cast(name: str, half: torch.dtype) -> None:
    torch.manual_seed(0)
    ready = rv.build_model(MODELS[name]).to(half)
    with default_dtype(half):
        torch.manual_seed(0)
        model = rv.build_model(MODELS[name])
        check_same(model, ready)
        assert model(torch.rand(2, 9, 1)).dtype == half


@half_types
def test_a_block_built_by_hand_under_a_half_default_runs(half: torch.dtype) -> None:
    with default_dtype(half):
        block = blocks.Residual(rv.S4D(4, 8), mixer=blocks.Mixer(4), ads=blocks.AdS(4))
        gate = blocks.Sandwich(4, 4)
        assert {p.dtype for p in block.parameters()} == {torch.float32}
        assert {p.dtype for p in gate.parameters()} == {half}
        assert gate(block(torch.randn(2, 9, 4))[0]).dtype == half


@every_setting
def test_a_default_of_float64_gives_float64_layers(name: str, settings: dict[str, Any]) -> None:
    with default_dtype(torch.float64):
        layer = layer_class(name)(**settings)
        assert {p.dtype for p in layer.parameters()} == {torch.float64}
        assert layer(torch.randn(2, 9, settings["d_model"]))[0].dtype == torch.float64


def test_tables_are_exact_under_a_default_of_float64() -> None:
    frequency = rv.ssm.dplr("legs", 8)[0].imag
    with default_dtype(torch.float64):
        for found in (rv.S4(2, 8).frequency, rv.S4D(2, 8).frequency, rv.DSS(2, 4).frequency, rv.S5(2, 8).lam[:, 1]):
            assert torch.equal(found.expand(2, 4), frequency.expand(2, 4))


@every_setting
def test_meta_and_fake_layers_take_real_weights(name: str, settings: dict[str, Any]) -> None:
    ready = layer_class(name)(**settings)
    x = torch.randn(2, 9, settings["d_model"])
    with torch.device("meta"):
        empty = layer_class(name)(**settings)
    assert not [name for name, p in empty.named_parameters() if not p.is_meta]
    empty.to_empty(device="cpu").load_state_dict(ready.state_dict())
    assert torch.equal(empty(x)[0], ready(x)[0])
    with FakeTensorMode():
        fake = layer_class(name)(**settings)
        assert fake(torch.randn(2, 9, settings["d_model"]))[0].shape == x.shape
    fake.load_state_dict(ready.state_dict(), assign=True)
    assert torch.equal(fake(x)[0], ready(x)[0])
    again = layer_class(name)(**settings)  # nothing fake was kept
    assert again(x)[0].isfinite().all()
