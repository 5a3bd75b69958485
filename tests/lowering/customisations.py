"""Every way in which somebody changes a model of ours, and the oracle that calls module after module itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from helpers import assert_close, stirred
from resolvent.attacks import Threat
from resolvent.blocks.norm import LayerNorm
from resolvent.blocks.residual import Residual
from resolvent.layers import S4D
from resolvent.models import Model
from resolvent.models.config import AdSConfig, ResidualConfig
from resolvent.models.layer_config import LayerConfig, S4DConfig
from resolvent.models.presets import robustness

THREAT = Threat("linf", 0.1, (0, 1))
Custom = Callable[[Model], Any]  # changes a model, or gives a context in which it is changed


def built(layer: LayerConfig | None = None, **more: Any) -> Model:
    block = ResidualConfig(layer or S4DConfig(4), mixer="linear", activation="gelu", final_activation="none")
    return stirred(replace(robustness("s4"), d_model=6, layers=2, block=block, ads=AdSConfig("relu"), **more), 0.1)


class ByModules(nn.Module):
    """The oracle: one call after another, without any method of `Model` or `Tower`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        tower = self.model.tower
        h = tower.dropout(tower.input_norm(tower.entry(x)))
        for block in tower.body.blocks:
            h, _ = block(h)
        out: Tensor = self.model.head(tower.final_norm(h))
        return out


# -- customisations ----------------------------------------------------------------------------------------------------


class LoRA(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 10 * x.sum(-1, keepdim=True)


class Shifted(LayerNorm):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x, lengths) + x.square()


class Doubled(S4D):
    def _sequence(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        y, state = super()._sequence(x, state, lengths)
        return 2 * y, state


class Twice(Residual):
    def _after(self, x: Tensor, h: Tensor, lengths: Tensor | None) -> Tensor:
        return 2 * super()._after(x, h, lengths)


class Negated(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def exchanged(place: str, kind: type[nn.Module], *given: Any) -> Custom:
    """A module of another class in this place, with the weights of the one that was there."""

    def change(model: Model) -> None:
        owner, _, name = place.rpartition(".")
        old = model.get_submodule(place)
        new = kind(*given).double()
        if old.state_dict():
            new.load_state_dict(old.state_dict())
        setattr(model.get_submodule(owner), name, new.train(old.training))

    return change


def own_forward(place: str) -> Custom:
    def change(model: Model) -> None:
        module = model.get_submodule(place)
        module.forward = lambda *given: 3 * type(module).forward(module, *given)

    return change


def hook(place: str, kind: str, function: Callable[..., Any]) -> Custom:
    return lambda model: getattr(model.get_submodule(place), kind)(function)


def reclassed(place: str, kind: type) -> Custom:
    return lambda model: setattr(model.get_submodule(place), "__class__", kind)


@contextmanager
def globally(register: Callable[..., Any], function: Callable[..., Any]) -> Any:
    handle = register(function)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def patched(kind: type, forward: Callable[..., Any]) -> Any:
    old = kind.__dict__["forward"]
    kind.forward = forward  # type: ignore[attr-defined]
    try:
        yield
    finally:
        kind.forward = old  # type: ignore[attr-defined]


def more(module: nn.Module, given: Any, out: Any = None) -> Any:
    """Of a linear map: a forward hook."""
    return out * 1.5 if isinstance(module, nn.Linear) else None


def less(module: nn.Module, given: Any) -> Any:
    """Of a linear map: a pre-hook."""
    return (given[0] * 0.5, *given[1:]) if isinstance(module, nn.Linear) else None


def turned(module: nn.Module, given: Any, out: Any = None) -> Any:
    """Gradients the other way round."""
    return tuple(None if g is None else -g for g in given)


def weight_norm(model: Model) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.tower.body.blocks[1].mixer.linear)  # type: ignore[arg-type]
    with torch.no_grad():
        model.tower.body.blocks[1].mixer.linear.parametrizations.weight.original0.mul_(2)  # type: ignore[union-attr]


def orthogonal(model: Model) -> None:
    parametrizations.orthogonal(model.tower.body.blocks[0].ads.scale)  # type: ignore[arg-type]


def pruned(model: Model) -> None:
    prune.l1_unstructured(model.tower.entry, "weight", 0.5)


def half_gate(model: Model) -> None:
    """Set after a first pass has been judged."""
    model(torch.rand(2, 5, 3).double())
    model.tower.body.blocks[0].mixer.kind = "half_glu1"  # type: ignore[union-attr]


BLOCK = "tower.body.blocks.1"
CUSTOM: dict[str, Custom] = {
    "LoRA for the entry": exchanged("tower.entry", LoRA, 3, 6),
    "LoRA in a mixer": exchanged(f"{BLOCK}.mixer.linear", LoRA, 6, 6),
    "LoRA in the adaptive scaling": exchanged(f"{BLOCK}.ads.scale", LoRA, 6, 6),
    "LoRA for the readout": exchanged("head.out", LoRA, 6, 10),
    "a subclass of the first norm": exchanged("tower.input_norm", Shifted, 6),
    "a subclass of the last norm": exchanged("tower.final_norm", Shifted, 6),
    "a subclass of a block's norm": exchanged(f"{BLOCK}.norm", Shifted, 6),
    "a subclass of an activation": exchanged(f"{BLOCK}.ads.sigma", Negated),
    "a softmax for an activation": exchanged(f"{BLOCK}.mixer.act", nn.Softmax, -1),
    "a softmax for the last activation": exchanged(f"{BLOCK}.mixer.final", nn.Softmax, -1),
    "a softmax for a dropout": exchanged("tower.dropout", nn.Softmax, -1),
    "a bend for a block's dropout": exchanged(f"{BLOCK}.dropout", nn.GELU),
    "alpha dropout": exchanged(f"{BLOCK}.dropout", nn.AlphaDropout, 0.3),
    "feature dropout in the mixer": exchanged(f"{BLOCK}.mixer.dropout", nn.Dropout1d, 0.5),
    "forward of a map": own_forward("tower.entry"),
    "forward of a norm": own_forward(f"{BLOCK}.norm"),
    "forward of an activation": own_forward(f"{BLOCK}.mixer.act"),
    "forward of the head": own_forward("head"),
    "a forward hook": hook(f"{BLOCK}.mixer.linear", "register_forward_hook", more),
    "a pre-hook": hook("tower.entry", "register_forward_pre_hook", less),
    "a backward hook": hook(f"{BLOCK}.mixer.linear", "register_full_backward_hook", turned),
    "a backward pre-hook": hook("tower.entry", "register_full_backward_pre_hook", turned),
    "a global hook": lambda _: globally(torch_module.register_module_forward_hook, more),
    "a global pre-hook": lambda _: globally(torch_module.register_module_forward_pre_hook, less),
    "a global backward hook": lambda _: globally(
        torch_module.register_module_full_backward_hook, lambda m, i, o: turned(m, i) if type(m) is nn.GELU else None
    ),
    "a global backward pre-hook": lambda _: globally(
        torch_module.register_module_full_backward_pre_hook, lambda m, o: turned(m, o) if type(m) is nn.GELU else None
    ),
    "weight norm": weight_norm,
    "a parametrisation": orthogonal,
    "pruned": pruned,
    "a subclass of the layer": reclassed(f"{BLOCK}.layer", Doubled),
    "a subclass of the block": reclassed(BLOCK, Twice),
    "a patched class": lambda _: patched(nn.Linear, lambda s, x: 2 * nn.functional.linear(x, s.weight, s.bias)),
    "another kind of mixer": half_gate,
}  # fmt: skip


@contextmanager
def customised(name: str, layer: LayerConfig | None = None, train: bool = False) -> Any:
    """The model and its oracle, each with modules of its own."""
    layer = S4DConfig(4) if layer is None else layer
    model = built(layer).train(train)
    found = CUSTOM[name](model)
    with found if hasattr(found, "__exit__") and not hasattr(found, "remove") else nullcontext():
        yield model, ByModules(_apart(model, name, layer, train)).train(train)


def _apart(model: Model, name: str, layer: LayerConfig, train: bool) -> Model:
    """A model that was changed in the same way: a copy would share the functions set on instances."""
    if name.startswith("a global") or name == "a patched class":
        return copy.deepcopy(model)
    other = built(layer).train(train)
    CUSTOM[name](other)
    return other


def data(n: int = 8, l: int = 18) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return torch.rand(n, l, 3, generator=drawn).double(), torch.randint(0, 10, (n,), generator=drawn)


def slope(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)  # of dropout
    x = x.clone().requires_grad_()
    out = f(x)
    return out.detach(), torch.autograd.grad(out.square().sum(), x)[0]


def agree(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
