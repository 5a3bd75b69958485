"""The data of a report: numbers and names that round-trip through JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues in the complex plane; a group is a colour (a block, a time step)."""

    name: str
    caption: str
    plane: Literal["continuous", "discrete"]
    re: list[float]
    im: list[float]
    group: list[int]
    groups: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Curve:
    """One impulse response, values at steps 0, 1, 2, ..."""

    label: str
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """The impulse responses of one initialisation."""

    name: str
    caption: str
    curves: list[Curve]


@dataclass(frozen=True)
class Record:
    """The data of the demo's page. `check` is a conformance report as JSON."""

    version: str
    created: str
    check: dict[str, Any]
    spectra: list[Spectrum]
    panels: list[Panel]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
