"""Certificates speak for our own modules as they were built: whatever else runs is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from resolvent.analysis import NoBound, certified_gain
from resolvent.blocks.norm import NoNorm
from resolvent.commands.certify.stages import stages_of
from resolvent.layers import LRU
from resolvent.models import LRUConfig, Model, ModelConfig, NormalisedLRUConfig, build_model
from resolvent.models import config as c
from resolvent.models.parts import last_weight


def made(lipschitz: bool = False) -> Model:
    torch.manual_seed(0)
    block: Any = c.LipschitzConfig(NormalisedLRUConfig(4)) if lipschitz else c.ResidualConfig(LRUConfig(4), mixer="mlp")
    config = ModelConfig(
        c.ChannelsConfig(2), block, c.ClassifierConfig(3, hidden=5), 4, 1, norm="none",
        certified=c.CertifiedConfig(2.0) if lipschitz else None,
    )  # fmt: skip
    model = build_model(config).eval()
    assert isinstance(model, Model)
    return model


def times_fifty(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass that is fifty times as steep, with the name of its base hidden in nothing."""

    def forward(self: Any, *args: Any, **more: Any) -> Any:
        y = kind.forward(self, *args, **more)
        return (50 * y[0], *y[1:]) if isinstance(y, tuple) else 50 * y

    return type("Steeper", (kind,), {"forward": forward})


def child(model: nn.Module, place: str) -> nn.Module:
    return model.get_submodule(place) if place else model


PLACES = [
    "", "tower", "tower.entry", "tower.input_norm", "tower.dropout", "tower.body", "tower.body.blocks.0",
    "tower.body.blocks.0.layer", "tower.body.blocks.0.mixer", "tower.body.blocks.0.mixer.act",
    "tower.body.blocks.0.mixer.linear", "tower.body.blocks.0.mixer.down", "tower.body.blocks.0.mixer.dropout",
    "tower.body.blocks.0.dropout", "tower.body.blocks.0.ads", "tower.final_norm", "head", "head.hidden.0", "head.out",
]  # fmt: skip
BOUNDED = ["tower.entry", "tower.body.blocks.0", "tower.body.blocks.0.layer", "tower.body.blocks.0.layer.layer",
           "tower.body.blocks.0.sigma", "head", "head.hidden", "head.out"]  # fmt: skip


def check_refused(model: Model, place: str) -> None:
    gain = certified_gain(model.gain_parts(6), head=last_weight(model.head))
    assert gain.value is None
    named = [part.name for part in gain.broken_by]
    assert any(place.startswith(name) or name == "model" for name in named), named
    with pytest.raises(NoBound, match="stages_of"):
        stages_of(model, 6)


@pytest.mark.parametrize(("lipschitz", "place"), [(False, p) for p in PLACES] + [(True, p) for p in BOUNDED])
def test_a_subclass_is_refused_by_name(lipschitz: bool, place: str) -> None:
    model = made(lipschitz)
    certified_gain(model.gain_parts(6)).require()
    part = child(model, place)
    part.__class__ = times_fifty(type(part))
    check_refused(model, place)
    assert "Steeper" in certified_gain(model.gain_parts(6)).explanation


def hook(module: nn.Module, *_: Any) -> None:
    return None


TOUCHES: dict[str, Callable[[nn.Module], object]] = {
    "forward hook": lambda m: m.register_forward_hook(hook),
    "pre-hook": lambda m: m.register_forward_pre_hook(hook),
    "backward hook": lambda m: m.register_full_backward_hook(hook),
    "backward pre-hook": lambda m: m.register_full_backward_pre_hook(hook),
    "own forward": lambda m: setattr(m, "forward", lambda *a, **k: 50 * type(m).forward(m, *a, **k)),
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("place", ["", "tower", "tower.entry", "tower.body.blocks.0.layer", "head", "head.out"])
def test_hooks_and_replaced_methods_are_refused(touch: str, place: str) -> None:
    model = made()
    TOUCHES[touch](child(model, place))
    check_refused(model, place)


def test_hooks_for_all_modules_are_refused() -> None:
    model = made()
    held = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        check_refused(model, "model")
    finally:
        held.remove()
    certified_gain(model.gain_parts(6)).require()


@pytest.mark.parametrize("place", ["", "tower.entry", "tower.body.blocks.0.layer", "tower.body.blocks.0.mixer.act"])
def test_a_class_whose_forward_was_replaced_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    kind = type(child(model, place))
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *a, **k: own(self, *a, **k))
    check_refused(model, place)
    monkeypatch.undo()
    certified_gain(model.gain_parts(6)).require()


def test_parametrised_weights_and_foreign_modules() -> None:
    class Twice(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 2 * w

    model = made()
    parametrize.register_parametrization(model.tower.entry, "weight", Twice())
    check_refused(model, "tower.entry")
    model = made()
    model.tower.dropout = nn.Softmax(-1)  # type: ignore[assignment]
    check_refused(model, "tower.dropout")
    model = made()
    model.tower.body.blocks[0].mixer.dropout = nn.AlphaDropout(0.5)  # type: ignore[union-attr]  # identity in eval()
    certified_gain(model.gain_parts(6)).require()


def test_what_is_ours_keeps_its_bound() -> None:
    """Frozen, copied and in another precision; also the layers that stand alone."""
    from copy import deepcopy

    from resolvent.lowering.parts import parts_of

    for lipschitz in (False, True):
        model = made(lipschitz)
        value = certified_gain(model.gain_parts(6)).require()
        with model.frozen():
            assert certified_gain(model.gain_parts(6)).require() == value
        assert certified_gain(deepcopy(model).gain_parts(6)).require() == value
        assert certified_gain(deepcopy(model).double().gain_parts(6)).require() == pytest.approx(value, rel=1e-5)
    assert parts_of(LRU(3), "x")[0].system is not None
    assert parts_of(NoNorm(3), "x") == []
