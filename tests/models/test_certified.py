"""Certified models: the prescribed gain against search, what they refuse, streams, disk, and the digits."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.models import (
    AdSConfig,
    CertifiedConfig,
    ChannelsConfig,
    ClassifierConfig,
    L2RUConfig,
    LipschitzConfig,
    ModelConfig,
    ResidualConfig,
    RetrievalConfig,
    TokensConfig,
    build_model,
    load_into,
    load_model,
    presets,
    save_model,
    verify_certified,
)
from resolvent.models.certified import by_construction
from resolvent.ssm.part import Part, chained
from resolvent.ssm.system import System

F64 = torch.float64
SMALL = {"d_model": 3, "hidden": 8, "memory": 6}


def scrambled(model: nn.Module, scale: float) -> nn.Module:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * (1.0 if "gamma" in name else scale))
    return model


def worst_ratio(model: nn.Module, x: Tensor, steps: int = 15) -> float:
    """Gradient ascent on |f(x + e) - f(x)| / |e| over e, and over x."""
    x = x.clone().requires_grad_()
    e = (0.1 * torch.randn_like(x)).requires_grad_()
    optimiser, best = torch.optim.Adam([x, e], lr=0.05), 0.0
    for _ in range(steps):
        moved = (model(x + e) - model(x)).flatten(1).norm(dim=1) / e.flatten(1).norm(dim=1)
        best = max(best, float(moved.detach().max()))
        optimiser.zero_grad()
        (-moved.sum()).backward()
        optimiser.step()
    return best


@pytest.mark.parametrize(
    ("pooling", "scale"), [("state", 0.3), ("state", 10.0), ("mean", 1.0), ("last", 1.0), ("max", 1.0)]
)
def test_no_search_passes_the_prescribed_gain(pooling: str, scale: float) -> None:
    torch.manual_seed(0)
    config = presets.l2ru_classifier(2, 4, gain=2.5, **SMALL)
    head = dataclasses.replace(config.head, pooling=pooling)
    model = scrambled(build_model(dataclasses.replace(config, head=head)), scale)
    assert by_construction(model.gain_parts()) <= 2.5
    model.double()
    assert worst_ratio(model, torch.randn(6, 15, 2, dtype=F64)) <= 2.5


def test_pure_gain_of_the_stack() -> None:
    """|y| <= gain |u| from rest, and zero for zero: no biases."""
    torch.manual_seed(0)
    model = scrambled(build_model(presets.l2ru_stack(2, 3, gain=0.8, d_model=5)), 1.0).double()
    u = torch.randn(20, 40, 2, dtype=F64)
    assert (model(torch.zeros_like(u)) == 0).all()
    assert (model(u).flatten(1).norm(dim=1) <= 0.8 * u.flatten(1).norm(dim=1)).all()
    assert not [part for part in model.gain_parts() if part.kind == "bias"]
    assert by_construction(model.gain_parts()) <= 0.8


@pytest.mark.slow
def test_the_bound_is_approached() -> None:
    """Trained to move its outputs, a model reaches most of its gain: the bound is not idle."""
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier(1, 3, gain=2.0, **SMALL))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    x, e = torch.randn(8, 10, 1), 0.1 * torch.randn(1, 10, 1)
    for _ in range(40):
        optimiser.zero_grad()
        (-(model(x + e) - model(x)).norm(dim=1).mean()).backward()
        optimiser.step()
    assert worst_ratio(model, x, 20) > 0.7 * 2.0


@pytest.mark.slow
def test_absurd_training_keeps_the_gain() -> None:
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier(1, 3, gain=2.0, **SMALL))
    optimiser = torch.optim.Adam(model.parameters(), lr=3.0)
    x, y = torch.randn(16, 10, 1), torch.randint(0, 3, (16,))
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert by_construction(model.gain_parts()) <= 2.0
    assert all(block.layer.certificate().holds for block in model.tower.body.blocks)
    assert worst_ratio(model.double(), x.double(), 20) <= 2.0


def test_stream_checkpoint_and_padding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier(2, 4, **SMALL)).double()
    x = torch.randn(3, 11, 2, dtype=F64)
    whole, _ = model.stream(x)
    for t in (1, 6, 11):
        assert_close(whole[:, t - 1], model(x[:, :t]))
    state, y = None, None
    for x_t in x.unbind(1):
        y, state = model.step(x_t, state)
    assert_close(y, model(x))
    lengths = torch.tensor([11, 4, 1])
    assert_close(model(x, lengths), torch.cat([model(x[i : i + 1, :n]) for i, n in enumerate(lengths)]))
    again = load_model(save_model(model, tmp_path / "model"))
    assert torch.equal(again(x), model(x))
    assert [p.lipschitz for p in again.gain_parts()] == [p.lipschitz for p in model.gain_parts()]
    with model.frozen():
        assert_close(model(x), again(x))
    _, state = model.stream(x[:, :6])
    none, state = model.stream(x[:, 6:6], state)
    assert none.shape == (3, 0, 4)
    assert_close(model.stream(x[:, 6:], state)[0], whole[:, 6:])


def test_constants_by_construction() -> None:
    two, half = Part("a", "linear", 2.0), Part("b", "linear", 0.5)
    assert by_construction([two, Part("c", "residual", parts=(two, half)), half]) == 2.0
    assert by_construction([two, Part("n", "norm", None, reason="divides")]) == math.inf


def test_weights_that_certify_nothing_are_refused(tmp_path: Path) -> None:
    """A checkpoint is verified when it is read: NaN weights never come back as a certified model."""
    model = build_model(presets.l2ru_classifier(1, 3, **SMALL))
    assert verify_certified(model) <= 3.0
    with torch.no_grad():
        model.tower.body.blocks[0].layer.free.X[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        load_model(save_model(model, tmp_path / "bad"))
    good = build_model(presets.l2ru_classifier(1, 3, **SMALL))
    with pytest.raises(ValueError, match="NaN"):
        load_into(good, tmp_path / "bad")
    assert verify_certified(good) <= 3.0
    with pytest.raises(ValueError, match=r"save_model: .* rounded to torch\.bfloat16; convert with model\.float"):
        save_model(good.bfloat16(), tmp_path / "half")
    assert not (tmp_path / "half").exists()
    assert verify_certified(load_model(save_model(good.float(), tmp_path / "wide"))) <= 3.0
    plain = build_model(ModelConfig(d_model=4, layers=1))
    with pytest.raises(ValueError, match="CertifiedConfig"):
        verify_certified(plain)


REFUSED: dict[str, dict[str, Any]] = {
    "slope is unbounded near zero": {"norm": "layer"},
    "input_norm": {"input_norm": "batch"},
    "1 / \\(1 - p\\)": {"dropout": 0.1},
    "adaptive scaling": {"ads": AdSConfig()},
    "tokens": {"input": TokensConfig(5)},
    "retrieval": {"head": RetrievalConfig()},
    "not prescribed": {"block": ResidualConfig()},
    "starts at its capped norm": {"head": ClassifierConfig(10, "state", std=1.0)},
    "bias in its input": {"certified": CertifiedConfig(1.0, "gain")},
    "bias in its head": {"certified": CertifiedConfig(1.0, "gain"), "input": ChannelsConfig(1, bias=False)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_breaks_the_bound_is_refused(message: str) -> None:
    config = dataclasses.replace(presets.l2ru_classifier(), **REFUSED[message])
    with pytest.raises(ValueError, match=message):
        build_model(config)


def test_other_refusals() -> None:
    for gain in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="gain"):
            CertifiedConfig(gain)
    with pytest.raises(ValueError, match="softmax"):
        ClassifierConfig(10, "softmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="certified models"):
        build_model(ModelConfig(head=ClassifierConfig(10, "state")))


def test_l2ru_in_a_plain_scaffold() -> None:
    """L2RU is a layer like any other, and its block may stand without a prescribed model gain."""
    x = torch.randn(2, 9, 1)
    for block in (ResidualConfig(L2RUConfig(4, form="contraction")), LipschitzConfig(L2RUConfig(form="complete"))):
        model = build_model(ModelConfig(block=block, d_model=4, layers=1, norm="none")).eval()
        assert model(x).shape == (2, 10)
        assert model.gain_parts()


def test_length_sharpens_the_mean() -> None:
    config = presets.l2ru_classifier(1, 3, **SMALL)
    model = build_model(dataclasses.replace(config, head=ClassifierConfig(3, "mean")))
    any_length, of_64 = (by_construction(model.gain_parts(length)) for length in (None, 64))
    assert math.isclose(of_64, any_length / 8)


def test_presets_of_other_models_have_parts() -> None:
    """Every published model is described; those without a bound name what breaks it."""

    def no_norm(system: System) -> float:
        return 1.0

    for structure in ("s4", "dss", "s5", "mega", "mamba"):
        model = build_model(presets.robustness(structure, "mnist")).eval()  # type: ignore[arg-type]
        parts = model.gain_parts(784)
        assert chained(parts, no_norm) is None
        assert all(found.reason for part in parts for found in part.unbounded())
    two = build_model(ModelConfig(TokensConfig(7), head=RetrievalConfig(), d_model=4, layers=1)).eval()
    kinds = {found.kind for part in two.gain_parts() for found in part.unbounded()}
    assert {"embedding", "gate", "norm"} <= kinds


@pytest.mark.slow
def test_digits_are_learned_with_certified_radii() -> None:
    """The preset on the embedded digits: 90 % clean, more than half certified at an L2 radius of 0.5."""
    from resolvent.data import load_task
    from resolvent.training import FitSettings, fit, standard

    task, how = load_task("digits"), presets.l2ru_training()
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier())
    assert how.epochs is not None
    fit(
        model,
        task,
        standard,
        FitSettings(how.epochs, how.batch, how.lr, how.weight_decay, choose="clean", evaluate_every=how.epochs),
    )
    model.eval()
    bound = by_construction(model.gain_parts(64))
    assert bound <= 3.0
    with torch.no_grad():
        z = model(task.test.x).double()
    y = task.test.y[:, None]
    margin = z.gather(1, y)[:, 0] - z.scatter(1, y, -torch.inf).amax(1)
    radius = margin / (math.sqrt(2) * bound)
    assert (radius > 0).double().mean() >= 0.9
    assert (radius > 0.25).double().mean() > 0.75
    assert (radius > 0.5).double().mean() > 0.5
