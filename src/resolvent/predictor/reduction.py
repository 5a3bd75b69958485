"""A trained model with fewer states: balanced truncation of every S4D and S5 layer, with a certified error for each.

    small, found = reduce_model(model, error=1e-3)
    print(found)          # d_state before and after; the error bound of each layer's output

For every input u of a layer  ||y - y_small||_2 <= error gain ||u||_2,  where gain is the layer's own largest. The error
is certified, not sampled: the upper end of the bracket of `hinf_norm` of the difference of the layer's systems before
and after, with the parameters in the model's own precision. It holds in exact arithmetic; float32 rounding of a pass
comes in addition, before and after.

The fewest states are found by bisection over the order of the truncated systems. All layers get as many states
as the most demanding one needs: a model has one d_state.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from resolvent.analysis import (
    Reduction,
    balanced_truncation,
    difference,
    frequency_response,
    hankel_singular_values,
    hinf_norm,
)
from resolvent.models import Model, TwoTower, build_model
from resolvent.models.config import ModelConfig
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.predictor.modes import Modes, modes_of
from resolvent.ssm import System
from resolvent.usage.numbers import check_positive

_WIDTH = 1e-2  # relative width of an error's bracket


class CannotReduce(ValueError):
    """No states can be removed within this error."""


@dataclass(frozen=True)
class LayerReduction:
    """One layer: states of the full system before and after; the certified error of its output per unit of input."""

    name: str
    before: int
    after: int
    error: float  # certified: upper bound for inputs of norm 1
    measured: float  # the largest found at a frequency
    gain: float  # the layer's largest gain over a frequency grid: at most its H-infinity norm
    truncation: float  # twice the sum of the dropped Hankel singular values, of the worst channel


@dataclass(frozen=True)
class ModelReduction:
    """The reduction of every layer.

    Examples:
        >>> block = rv.models.ResidualConfig(rv.models.S4DConfig(8, init="real"))
        >>> model = rv.build_model(rv.ModelConfig(block=block, d_model=4, layers=1)).eval()
        >>> small, found = rv.predictor.reduce_model(model, error=0.1)
        >>> found.after <= 8
        True
    """

    layers: tuple[LayerReduction, ...]
    asked: float

    @property
    def before(self) -> int:
        return self.layers[0].before

    @property
    def after(self) -> int:
        return self.layers[0].after

    def to_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "layers": [vars(each) for each in self.layers]}

    def __str__(self) -> str:
        width = max(len(each.name) for each in self.layers)
        lines = [f"d_state {self.before} -> {self.after}; a layer's output moves by at most {self.asked:g} of its gain"]
        for each in self.layers:
            share = each.error / each.gain
            lines.append(f"  {each.name:<{width}}  {each.error:.3g} |u|, {share:.3g} of its gain {each.gain:.3g}")
        return "\n".join(lines)


def reduce_model(model: Model | TwoTower, error: float) -> tuple[Model | TwoTower, ModelReduction]:
    """A copy with fewer states; `error` is relative to each layer's own largest gain.

    Raises ValueError if layers cannot be reduced, `CannotReduce` if nothing can be removed within this error.

    Examples:
        >>> block = rv.models.ResidualConfig(rv.models.S4DConfig(8, init="real"))
        >>> model = rv.build_model(rv.ModelConfig(block=block, d_model=4, layers=1)).eval()
        >>> small, found = rv.predictor.reduce_model(model, error=0.1)
        >>> small(torch.rand(2, 30, 1)).shape
        torch.Size([2, 10])
    """
    check_positive("reduce", error=error)
    held = {name: layer for name, layer in model.named_modules() if hasattr(layer, "set_modes")}
    config = _layer_config(model.config, held)
    gains = {name: _gain(layer) for name, layer in held.items()}
    best: Model | TwoTower | None = None
    cuts: tuple[LayerReduction, ...] = ()
    low, high = _fewest(held, gains, error), max(_wide_system(layer).states for layer in held.values())
    while low <= high:
        order = (low + high) // 2
        found = {name: _modes(layer, order) for name, layer in held.items()}
        count = max(modes.places for modes, _ in found.values())
        small = _with_states(model, config, 2 * count)
        tried = _fill(small, held, found, gains)
        if all(each.error <= error * each.gain for each in tried):
            best, cuts, high = small, tried, order - 1
        else:
            low = order + 1
    if best is None:
        worst = max(tried, key=lambda each: each.error / each.gain)
        raise CannotReduce(
            f"reduce: {worst.name} moves by {worst.error / worst.gain:.3g} of its gain, above the error {error:g}: the "
            "modal form loses too much; allow a larger one."
        )
    if cuts[0].after >= config.d_state:
        raise CannotReduce(
            f"reduce: within the error {error:g} the layers need all of their {config.d_state} states: nothing "
            "to gain; allow a larger one."
        )
    return best.train(model.training), ModelReduction(cuts, float(error))


@torch.no_grad()
def _fewest(held: dict[str, Any], gains: dict[str, float], error: float) -> int:
    """A lower bound on the order: the error is at least the first dropped Hankel singular value."""
    counts = [1]
    for name, layer in held.items():
        values = hankel_singular_values(_wide_system(layer))
        counts.append(int((values > error * gains[name]).sum(-1).max()))
    return max(counts)


@torch.no_grad()
def _wide_system(layer: Any) -> System:
    """The system of the current parameters, in float64."""
    system: System = copy.deepcopy(layer).double().system()
    return system


def _layer_config(config: ModelConfig, held: dict[str, Any]) -> S4DConfig | S5Config:
    own = getattr(config.block, "layer", None)
    if not held or not isinstance(own, S4DConfig | S5Config):
        kind = type(own if own is not None else config.block).__name__.removesuffix("Config")
        raise ValueError(
            f"reduce: expected a model of S4D or S5 layers, whose systems stay the same over time, got {kind}."
        )
    if own.bidirectional:
        raise ValueError("reduce: layers that run in both directions have no causal system; train with one direction.")
    return own


@torch.no_grad()
def _gain(layer: Any) -> float:
    """The largest gain over a grid of frequencies: no more than the H-infinity norm."""
    system, omega = _wide_system(layer), torch.linspace(0, math.pi, 256, dtype=torch.float64)
    responses = (frequency_response(system, part).movedim(-1, -3) for part in omega.split(64))  # (..., f, p, m)
    return max(float(torch.linalg.matrix_norm(G, 2).max()) for G in responses)


@torch.no_grad()
def _modes(layer: Any, order: int) -> tuple[Modes, Reduction]:
    system = _wide_system(layer)
    reduced = balanced_truncation(system, order=min(order, system.states))
    return modes_of(reduced.system), reduced


def _with_states(model: Model | TwoTower, own: S4DConfig | S5Config, d_state: int) -> Model | TwoTower:
    """A new model of that size with all other weights of the old one."""
    layer: Any = replace(own, d_state=d_state, init="legs")
    if isinstance(layer, S5Config):
        layer = replace(layer, blocks=1, conjugate=True)
    small = build_model(replace(model.config, block=replace(model.config.block, layer=layer)))
    first = next(model.parameters())
    small = small.to(first.device, first.dtype)
    state = {name: value for name, value in model.state_dict().items() if small.state_dict()[name].shape == value.shape}
    small.load_state_dict(state, strict=False)
    return small


@torch.no_grad()
def _fill(
    small: Model | TwoTower, held: dict[str, Any], found: dict[str, tuple[Modes, Reduction]], gains: dict[str, float]
) -> tuple[LayerReduction, ...]:
    lines = []
    for name, layer in held.items():
        modes, reduced = found[name]
        new: Any = small.get_submodule(name)
        new.set_modes(*_pad(modes, new.d_state // 2))
        apart = hinf_norm(difference(_wide_system(layer), _wide_system(new)), _WIDTH)
        error, measured, cut = (float(v.max()) for v in (apart.upper, apart.lower, reduced.error_bound))
        lines.append(LayerReduction(name, layer.d_state, new.d_state, error, measured, gains[name], cut))
    return tuple(lines)


def _pad(modes: Modes, count: int) -> Modes:
    more = count - modes.places
    pad = torch.nn.functional.pad
    return Modes(pad(modes.lam_bar, (0, more), value=0.5), pad(modes.B, (0, 0, 0, more)), pad(modes.C, (0, more)))
