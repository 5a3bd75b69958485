"""The table of layers and the settings with which each is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from resolvent import layers
from resolvent.conformance.properties import PROPERTIES, Property
from resolvent.conformance.result import Report
from resolvent.conformance.runner import Listener, Settings, measure
from resolvent.conformance.subject import Subject, Traits
from resolvent.usage.error import UsageError
from resolvent.usage.load import suggestion


@dataclass(frozen=True)
class Case:
    """One set of constructor arguments of a layer. `bad` lists arguments that the constructor must refuse."""

    layer: str
    label: str
    settings: dict[str, Any]
    traits: Traits = field(default_factory=Traits)
    bad: tuple[dict[str, Any], ...] = ()
    length: int = 131

    def subject(self, how: Settings) -> Subject:
        traits = replace(self.traits, open_lengths=True)
        if self.settings.get("bidirectional"):
            one_way = {**self.settings, "bidirectional": False}
            traits = replace(traits, streams=False, unidirectional=_builder(self.layer, one_way))
        traits = replace(traits, refuses=tuple(_builder(self.layer, {**self.settings, **bad}) for bad in self.bad))
        width = self.settings["d_model"]
        make = _builder(self.layer, self.settings)
        return Subject(make, width, how.dtype, how.seed, how.full, self.length, traits=traits, device=how.device)


STABLE = Traits(stable=True)
CACHE = Traits(grows=True, additive=False)
WINDOW = Traits(additive=False)
MEGA = {"d_model": 3, "position": "relative", "activation": "laplace"}
GRIFFIN = {"d_model": 8, "heads": 2, "kv_heads": 1, "position": "half-rotary"}
COMPLETE = {"d_model": 4, "gamma": 2.0, "trainable_gamma": True, "form": "complete"}
ODD_STATE = ({"d_state": 7}, {"d_state": 0}, {"d_model": 0})

CASES: tuple[Case, ...] = (
    Case("S4", "legs", {"d_model": 5, "d_state": 8}, STABLE, ODD_STATE),
    Case("S4", "one channel", {"d_model": 1, "d_state": 4}, STABLE),
    Case("S4", "both directions", {"d_model": 3, "d_state": 6, "bidirectional": True}),
    Case("S4D", "legs", {"d_model": 5, "d_state": 8}, STABLE, (*ODD_STATE, {"init": "legz"})),
    Case("S4D", "lin", {"d_model": 3, "d_state": 6, "init": "lin"}, STABLE),
    Case("S4D", "inv, bilinear", {"d_model": 3, "d_state": 4, "init": "inv", "discretisation": "bilinear"}, STABLE),
    Case("S4D", "real", {"d_model": 3, "d_state": 4, "init": "real"}, STABLE),
    Case("S4D", "both directions", {"d_model": 3, "d_state": 6, "bidirectional": True}),
    Case("S4D", "ptd, no skip", {"d_model": 3, "d_state": 8, "init": "ptd", "skip": False}, STABLE),
    Case("DSS", "exp", {"d_model": 5, "d_state": 4}, bad=({"d_state": 0}, {"kernel": "sine"})),
    Case("DSS", "softmax, length 131", {"d_model": 3, "d_state": 4, "kernel": "softmax", "length": 131}),
    Case("DSS", "softmax", {"d_model": 3, "d_state": 4, "kernel": "softmax"}, Traits(streams=False)),
    Case("DSS", "both directions", {"d_model": 3, "d_state": 4, "bidirectional": True}),
    Case("DSS", "ptd", {"d_model": 3, "d_state": 4, "init": "ptd"}),
    Case("S5", "one block", {"d_model": 5, "d_state": 8}, STABLE, ODD_STATE),
    Case("S5", "two blocks, bilinear", {"d_model": 3, "d_state": 8, "blocks": 2, "discretisation": "bilinear"}, STABLE),
    Case("S5", "all states", {"d_model": 3, "d_state": 4, "conjugate": False}, STABLE),
    Case("S5", "both directions", {"d_model": 3, "d_state": 8, "bidirectional": True}),
    Case("S5", "ptd, two blocks", {"d_model": 3, "d_state": 8, "blocks": 2, "init": "ptd"}, STABLE),
    Case("LRU", "disc", {"d_model": 5, "d_state": 7}, STABLE, ({"d_state": 0}, {"r_min": 0.9, "r_max": 0.5})),
    Case("LRU", "ring", {"d_model": 3, "d_state": 4, "r_min": 0.9, "r_max": 0.999}, STABLE),
    Case("LRU", "both directions", {"d_model": 3, "d_state": 4, "bidirectional": True}),
    Case("L2RU", "diagonal", {"d_model": 5, "d_state": 7}, STABLE, ({"gamma": 0.0}, {"gamma": -1.0}, {"form": "l2n"})),
    Case("L2RU", "contraction", {"d_model": 3, "d_state": 4, "gamma": 0.5, "form": "contraction"}, STABLE),
    Case("L2RU", "complete, learned gain", COMPLETE, STABLE, ({"d_state": 7}, {"r_max": 0.9})),
    Case("L2RU", "dense", {"d_model": 3, "d_state": 5, "gamma": 0.8, "form": "dense"}, STABLE, ({"r_max": 0.9},)),
    Case("EMA", "n = 4", {"d_model": 5, "d_state": 4}, STABLE, ({"d_state": 0}, {"d_model": 2.5})),
    Case("EMA", "n = 1", {"d_model": 3, "d_state": 1}, STABLE),
    Case("EMA", "both directions", {"d_model": 3, "d_state": 4, "bidirectional": True}),
    Case("S6", "mamba", {"d_model": 5, "d_state": 4}, STABLE, ({"d_state": 0}, {"dt_rank": 0})),
    Case("S6", "one channel, one state", {"d_model": 1, "d_state": 1}, STABLE),
    Case("S6", "both directions", {"d_model": 3, "d_state": 4, "bidirectional": True}),
    Case("ScalarS6", "free A", {"d_model": 3, "d_state": 4, "abscissa": -0.1}, bad=({"d_state": 0},)),
    Case("ScalarS6", "fixed A", {"d_model": 3, "d_state": 2, "fixed_A": True}),
    Case("ScalarS6", "both directions", {"d_model": 3, "d_state": 2, "abscissa": -0.1, "bidirectional": True}),
    Case("RGLRU", "one head", {"d_model": 5}, STABLE, ({"heads": 2}, {"d_model": 0})),
    Case("RGLRU", "two heads", {"d_model": 4, "heads": 2}, STABLE),
    Case("RGLRU", "both directions", {"d_model": 4, "bidirectional": True}),
    Case("Attention", "full", {"d_model": 6, "heads": 3}, CACHE, ({"heads": 0}, {"kind": "sparse"}, {"heads": 4})),
    Case("Attention", "chunked, relative, laplace", {**MEGA, "kind": "chunked", "size": 8}, WINDOW),
    Case("Attention", "local, one key head", {**GRIFFIN, "kind": "local", "size": 7}, WINDOW),
    Case("Attention", "both directions", {"d_model": 4, "heads": 2, "bidirectional": True}, CACHE),
    Case("ShortConv", "width 4", {"d_model": 5}, bad=({"width": 0},)),
    Case("ShortConv", "width 1, no bias", {"d_model": 3, "width": 1, "bias": False}),
    Case("ShortConv", "both directions", {"d_model": 3, "bidirectional": True}),
)


def layer_names() -> list[str]:
    return list(dict.fromkeys(case.layer for case in CASES))


def layer_class(name: str) -> type[nn.Module]:
    """The class of a layer, imported on demand."""
    return getattr(layers, name)


def select(name: str | None) -> list[Case]:
    """The cases of one layer, or all."""
    if name is None:
        return list(CASES)
    found = [case for case in CASES if case.layer.lower() == name.lower()]
    if not found:
        raise UsageError(f"there is no layer {name!r}; {suggestion(name, layer_names())}")
    return found


def plan(cases: Iterable[Case], full: bool) -> Iterator[tuple[Case, Property]]:
    """The measurements: not every property runs on every case of a layer."""
    seen: set[str] = set()
    for case in cases:
        for prop in PROPERTIES:
            if case.layer not in seen or not (prop.single or (prop.costly and not full)):
                yield case, prop
        seen.add(case.layer)


def check_layers(name: str | None = None, settings: Settings | None = None, listener: Listener | None = None) -> Report:
    """Check one of the library's layers, or all of them.

    Examples:
        >>> report = rv.conformance.check_layers("S5")  # doctest: +SKIP
    """
    settings = settings or Settings()
    results = []
    for case, prop in plan(select(name), settings.full):
        results.append(measure(case.layer, case.label, case.subject(settings), prop))
        if listener is not None:
            listener(results[-1])
    return Report(tuple(results), settings.to_json())


def _builder(layer: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    return lambda: layer_class(layer)(**settings)
