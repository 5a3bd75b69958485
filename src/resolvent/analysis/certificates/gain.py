"""The L2 Lipschitz constant of a whole model from those of its parts, or the names of the parts without one.

    found = certified_gain(model.gain_parts(length))
    found.value        # ||f(x) - f(x')||_2 <= value ||x - x'||_2, or None
    found.broken_by    # the components without a finite constant, each with its reason

With `head`, the rows of the last linear map, the constant of everything before it is kept as well: differences of two
logits are then bounded by the distance of their rows instead of the norm of the whole map.

A linear system counts with the upper end of its bracketed H-infinity norm, valid for sequences of any length. A
chain multiplies, a residual connection adds 1, parallel parts add up. Everything is computed in float64 and the
product is raised by `SLACK`, far above the rounding of products, spectral norms and brackets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from resolvent.ssm.contraction import spectral_norm
from resolvent.ssm.part import COMPOSED, Part, compose
from resolvent.ssm.system import System

SLACK = 1e-6  # relative: covers rounding in float64 with a wide margin

SystemGain = Callable[[System], tuple[float, float, str]]
"""(lower, upper, reason) of the H-infinity norm; an infinite one has a reason."""


class NoBound(ValueError):
    """A model without a finite Lipschitz constant cannot be certified.

    Examples:
        >>> issubclass(rv.analysis.NoBound, Exception)
        True
    """


class BrokenClaim(ValueError):
    """A component has a larger gain than claimed when it was built or stored.

    Examples:
        >>> issubclass(rv.analysis.BrokenClaim, Exception)
        True
    """


@dataclass(frozen=True)
class PartGain:
    """One component with its constant; None comes with a reason."""

    name: str
    kind: str
    value: float | None
    reason: str = ""
    parts: tuple[PartGain, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {"name": self.name, "kind": self.kind, "lipschitz": self.value}
        if self.reason:
            record["reason"] = self.reason
        return record | ({"parts": [p.as_dict() for p in self.parts]} if self.parts else {})


@dataclass(frozen=True)
class Gain:
    """`value` is None if no global bound exists; `parts` is the breakdown, in order.

    Examples:
        >>> round(rv.analysis.certified_gain([rv.ssm.Part("map", "linear", 2.0)]).value, 4)
        2.0
    """

    value: float | None
    parts: tuple[PartGain, ...]
    broken_by: tuple[PartGain, ...]
    biased: tuple[str, ...]  # components that add a constant: f is Lipschitz, but |f(x)| <= value |x| does not hold
    head: Tensor | None = None  # (k, d) rows of the last linear map
    features: float | None = None  # the constant of everything before `head`
    chain: tuple[Part, ...] = ()  # its parts, for floating-point error bounds
    least: int = 1  # valid for sequences of at least this many steps

    @property
    def explanation(self) -> str:
        """Why there is no bound; empty if there is one."""
        return "; ".join(f"{p.name} ({p.kind}): {p.reason}" for p in self.broken_by)

    def require(self) -> float:
        """The value, or an error that names the components without a bound."""
        if self.value is None:
            raise NoBound(
                f"certified_gain: this model has no finite Lipschitz constant: {self.explanation}. Replace the "
                "component, build the model from the Lipschitz blocks, or certify it by randomised smoothing."
            )
        return self.value

    def as_dict(self) -> dict[str, Any]:
        return {
            "lipschitz": self.value, "features": self.features, "slack": SLACK, "biased": list(self.biased),
            "broken_by": [p.as_dict() for p in self.broken_by], "parts": [p.as_dict() for p in self.parts],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [line for part in self.parts for line in _lines(part, 0)]
        total = f"{self.value:.6g}" if self.value is not None else f"none: {self.explanation}"
        return "\n".join([*lines, f"Lipschitz constant of the whole: {total}"])


def certified_gain(parts: Sequence[Part], *, head: Tensor | None = None, system_gain: SystemGain | None = None) -> Gain:
    """A Lipschitz bound of a whole model from its parts, `model.gain_parts(length)`: exact norms, multiplied.

    head          the weight (k, d) of the last linear map of the chain, to bound pairs of logits with it
    system_gain   replaces the H-infinity norm

    Examples:
        >>> model = rv.build_model(rv.models.presets.l2ru_classifier(gain=3.0, hidden=8)).eval()
        >>> rv.analysis.certified_gain(model.gain_parts(64)).value <= 3.0001
        True
    """
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(p, Part) for p in parts):
        raise TypeError("certified_gain: expected a list of Part, at least one; use model.gain_parts(length).")
    gains = tuple(_gain(part, system_gain or hinf_gain) for part in parts)
    broken = [leaf for gain in gains for leaf in _find_unbounded(gain)]
    value = _add_slack(_multiply(gains))
    if value is None and not broken:
        broken.append(PartGain("model", "series", None, "the product of the constants is beyond the largest number"))
    biased = tuple(leaf.name for part in parts for leaf in part.leaves() if leaf.kind == "bias")
    least = max(leaf.least for part in parts for leaf in part.leaves())
    made = Gain(value, gains, tuple(broken), biased, chain=tuple(parts), least=least)
    if head is None or value is None:
        return made
    return replace(made, head=head.detach().double(), features=_add_slack(_multiply(_before(gains, head))))


def hinf_gain(system: System) -> tuple[float, float, str]:
    """The bracket of the H-infinity norm; for a bank, the largest."""
    from resolvent.analysis.systems.hinf import hinf_norm

    found = hinf_norm(system)
    return float(found.lower.max()), float(found.upper.max()), found.reason


def _before(gains: Sequence[PartGain], head: Tensor) -> Sequence[PartGain]:
    """The chain without its last linear map and the bias after it; refused if that map is not `head`."""
    last = max((i for i, g in enumerate(gains) if g.kind != "bias"), default=0)
    size = spectral_norm(head)
    value = gains[last].value
    if gains[last].kind != "linear" or value is None or not math.isclose(value, size, rel_tol=1e-5):
        raise ValueError(
            f"certified_gain: head must be the weight of the last linear map; its spectral norm is {size:.6g}, but the "
            f"chain ends with {gains[last].name} ({gains[last].kind}) of {value}."
        )
    return gains[:last]


def _add_slack(value: float | None) -> float | None:
    """With the slack; None if it is not finite."""
    return None if value is None or not math.isfinite(value * (1 + SLACK)) else value * (1 + SLACK)


def _multiply(gains: Sequence[PartGain]) -> float | None:
    return compose("series", [gain.value for gain in gains])


def _gain(part: Part, system_gain: SystemGain) -> PartGain:
    if part.kind in COMPOSED:
        inner = tuple(_gain(p, system_gain) for p in part.parts)
        return PartGain(part.name, part.kind, compose(part.kind, [p.value for p in inner]), part.reason, inner)
    if part.system is not None:
        return _system(part, part.system, system_gain)
    value = part.lipschitz
    if value is None:
        return PartGain(part.name, part.kind, None, part.reason or "no Lipschitz constant is known")
    if not 0 <= value < math.inf:
        why = f"its constant is {value}: the parameters are not finite, or rounded too coarsely (half precision)"
        return PartGain(part.name, part.kind, None, why)
    return PartGain(part.name, part.kind, float(value), part.reason)


def _system(part: Part, system: System, system_gain: SystemGain) -> PartGain:
    """The H-infinity norm, which also checks a gain claimed by construction."""
    lower, upper, reason = system_gain(system)
    if part.lipschitz is not None and lower > part.lipschitz * (1 + SLACK):
        raise BrokenClaim(
            f"certified_gain: {part.name} was built for a gain of {part.lipschitz:.6g}, but its H-infinity norm is at "
            f"least {lower:.6g}: the certificate does not verify. Its parameters were changed after it was made."
        )
    if not math.isfinite(upper):
        return PartGain(part.name, part.kind, None, reason or "its H-infinity norm is not finite: it is not stable")
    return PartGain(part.name, part.kind, upper, reason or part.reason)


def _find_unbounded(part: PartGain) -> list[PartGain]:
    """The leaf components without a constant."""
    if part.kind in COMPOSED:
        return [leaf for inner in part.parts for leaf in _find_unbounded(inner)]
    return [part] if part.value is None else []


def _lines(part: PartGain, depth: int) -> list[str]:
    value = f"{part.value:.6g}" if part.value is not None else "none"
    reason = f"  {part.reason}" if part.reason else ""
    own = f"{'  ' * depth}{part.name}  {part.kind}  {value}{reason}"
    return [own, *(line for inner in part.parts for line in _lines(inner, depth + 1))]
