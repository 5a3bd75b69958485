"""The results of a check as plain JSON values: no tensors, no layers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from resolvent.disk import write_json

Status = Literal["pass", "fail", "n/a"]


@dataclass(frozen=True)
class Finding:
    """The largest error of a property, its tolerance, and the comparison it came from."""

    error: float
    tolerance: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance  # NaN fails


@dataclass(frozen=True)
class Skip:
    """A property that does not apply to this layer, and why."""

    reason: str


@dataclass(frozen=True)
class Result:
    """One property of one case.

    Examples:
        >>> rv.conformance.Result("S5", "default", "steps", "ok").property
        'steps'
    """

    layer: str
    case: str
    property: str
    status: Status
    error: float | None = None
    tolerance: float | None = None
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All results of one check, with its settings.

    Examples:
        >>> report = rv.conformance.Report((rv.conformance.Result("S5", "default", "steps", "ok"),))
        >>> len(report.results)
        1
    """

    results: tuple[Result, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.results) and not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.status == "fail")

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(r.layer for r in self.results))

    @property
    def properties(self) -> list[str]:
        return list(dict.fromkeys(r.property for r in self.results))

    def worst(self, layer: str, prop: str) -> Result | None:
        """The table cell: the result closest to (or furthest beyond) its tolerance over the layer's cases."""
        found = [r for r in self.results if (r.layer, r.property) == (layer, prop)]
        return max(found, key=_badness, default=None)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "settings": self.settings, "results": [_as_dict(r) for r in self.results]}

    def write(self, path: Path) -> None:
        """Write the report as JSON; atomically."""
        write_json(path, self.to_json(), finite=True)


def _as_dict(result: Result) -> dict[str, Any]:
    """JSON has no infinity: a non-finite error is written as a word."""
    row = asdict(result)
    if result.error is not None and not math.isfinite(result.error):
        row["error"] = str(result.error)
    return row


def _badness(result: Result) -> tuple[int, float]:
    if result.status == "n/a":
        return (0, 0.0)
    error, tolerance = result.error or 0.0, result.tolerance or 0.0
    part = math.inf if math.isnan(error) else error / tolerance if tolerance else error
    return (2 if result.status == "fail" else 1, part)
