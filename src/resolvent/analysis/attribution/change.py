"""Relative changes of a distance across components: per layer, averaged, as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """100 (after - before) / before at one place in a model; None, with the reason, if meaningless.

    Examples:
        >>> rv.analysis.Change("layer 1", 1.0, 0.5, -50.0).percent
        -50.0
    """

    where: str
    before: float
    after: float
    percent: float | None
    reason: str = ""

    @staticmethod
    def of(where: str, before: float, after: float, floor: float = 0.0) -> Change:
        """`floor` is the largest `before` that is indistinguishable from zero."""
        if not (math.isfinite(before) and math.isfinite(after)):
            return Change(where, before, after, None, "the features hold NaN or infinity")
        if before <= 0:
            return Change(where, before, after, None, "clean and perturbed features agree before the component")
        if before <= floor:
            return Change(where, before, after, None, "the features differ before the component by rounding alone")
        percent = 100 * (after - before) / before
        if not math.isfinite(percent):  # a subnormal `before`
            return Change(where, before, after, None, "the change is beyond the largest number")
        return Change(where, before, after, percent)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON: a distance that is not a finite number becomes None."""
        before, after = (v if math.isfinite(v) else None for v in (self.before, self.after))
        record = {"reason": self.reason} if self.reason else {}
        return {"where": self.where, "before": before, "after": after, "percent": self.percent, **record}


@dataclass(frozen=True)
class Changes:
    """One distance across one component, layer by layer.

    Examples:
        >>> change = rv.analysis.Change("layer 1", 1.0, 0.5, -50.0)
        >>> len(rv.analysis.Changes((change,)).layers)
        1
    """

    layers: tuple[Change, ...]

    @property
    def counted(self) -> int:
        """Number of layers with a value; the others have a reason and are excluded from the mean."""
        return len(self._values())

    @property
    def mean(self) -> float | None:
        """Mean over the layers with a value, in percent; None if there is none."""
        values = self._values()
        return math.fsum(values) / len(values) if values else None

    def as_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "counted": self.counted, "layers": [c.as_dict() for c in self.layers]}

    def _values(self) -> list[float]:
        return [c.percent for c in self.layers if c.percent is not None]


@dataclass(frozen=True)
class Component:
    """One component of a model: the changes of both distances across it, in the same order of layers.

    Examples:
        >>> change = rv.analysis.Changes((rv.analysis.Change("layer 1", 1.0, 0.5, -50.0),))
        >>> rv.analysis.Component("SSM", change, change).label
        'SSM'
    """

    label: str
    mse: Changes
    kl: Changes

    def as_dict(self) -> dict[str, Any]:
        return {"mse": self.mse.as_dict(), "kl": self.kl.as_dict()}


@dataclass(frozen=True)
class Attribution:
    """The effect of each component of a model on the distance between clean and perturbed features.

    Examples:
        >>> found = rv.analysis.Attribution((), samples=0)
        >>> found.components
        ()
    """

    components: tuple[Component, ...]
    samples: int

    def __getitem__(self, label: str) -> Component:
        for component in self.components:
            if component.label == label:
                return component
        raise KeyError(f"no component {label!r}; there are {', '.join(repr(c.label) for c in self.components)}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        return {"samples": self.samples, "components": {c.label: c.as_dict() for c in self.components}}

    def __str__(self) -> str:
        rows = [("component", "MSE", "KL"), *(row for c in self.components for row in _rows(c))]
        name, mse, kl = (max(len(row[i]) for row in rows) for i in range(3))
        title = f"change of the difference between clean and perturbed features, {self.samples} samples"
        return "\n".join([title, *(f"{a:<{name}}  {b:>{mse}}  {c:>{kl}}" for a, b, c in rows), *self._reasons()])

    def _reasons(self) -> list[str]:
        kinds = [(kind, c) for part in self.components for kind, all_ in (("MSE", part.mse), ("KL", part.kl))
                 for c in all_.layers]  # fmt: skip
        return [f"no {kind} at {c.where}: {c.reason}" for kind, c in kinds if c.reason]


def _rows(component: Component) -> Iterator[tuple[str, str, str]]:
    yield component.label, _percent(component.mse.mean), _percent(component.kl.mean)
    for mse, kl in zip(component.mse.layers, component.kl.layers, strict=True):
        yield f"  {mse.where}", _percent(mse.percent), _percent(kl.percent)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:+.1f} %"
