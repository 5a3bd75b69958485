"""How far logits computed in floating point may be from the exact outputs of the parts behind a gain.

Two bounds are propagated along the chain, each as const + slope |x|: on the norm of the activations, and on the error
they may have. A part of constant L maps an input error e to L e, and adds its own (`ssm.rounding`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from resolvent.analysis.certificates.gain import Gain, PartGain
from resolvent.analysis.certificates.precision import system_rounding
from resolvent.ssm.part import COMPOSED, Part
from resolvent.ssm.rounding import Rounding

UNKNOWN = 64.0  # allowance in eps of the output for a part without its own
UNDERFLOW = 1e4  # allowance per step in smallest normal numbers


@dataclass(frozen=True)
class Line:
    """const + slope |x|."""

    const: float
    slope: float

    def __add__(self, other: Line) -> Line:
        return Line(self.const + other.const, self.slope + other.slope)

    def times(self, factor: float, more: float = 0.0) -> Line:
        return Line(factor * self.const + more, factor * self.slope)

    def at(self, norm: float) -> float:
        return self.const + self.slope * norm


@dataclass(frozen=True)
class Flow:
    """The activations at a point of the chain: |h| <= size, |computed h - h| <= error; `steps` is 1 after pooling."""

    size: Line
    error: Line
    steps: int
    length: int  # steps of the input
    eps: float
    tiny: float

    def through(self, part: Part, gain: PartGain) -> Flow:
        if part.kind in COMPOSED:
            return self._compose(part, gain)
        assert gain.value is not None
        own, root = self._rounding(part, gain.value), math.sqrt(self.steps)
        size = self.size.times(gain.value, own.shift * root)
        new = (self.size + self.error).times(self.eps * own.slope, (self.eps * own.floor + self.tiny) * root)
        return replace(self, size=size, error=self.error.times(gain.value) + new, steps=self._steps(part))

    def _compose(self, part: Part, gain: PartGain) -> Flow:
        if part.kind == "series":
            return walk(self, part.parts, gain.parts)
        if part.kind == "residual":
            branches = [self, walk(self, part.parts, gain.parts)]
        else:
            branches = [self.through(p, g) for p, g in zip(part.parts, gain.parts, strict=True)]
        size = sum((b.size for b in branches), Line(0.0, 0.0))
        error = sum((b.error for b in branches), Line(0.0, 0.0))
        return replace(self, size=size, error=error + (size + error).times(2 * self.eps))

    def _rounding(self, part: Part, value: float) -> Rounding:
        if part.system is not None:
            return system_rounding(part.system, self.length)
        return Rounding(UNKNOWN * value) if part.rounding is None else part.rounding(self.length)

    def _steps(self, part: Part) -> int:
        return 1 if part.kind == "pool" else self.steps


def walk(flow: Flow, parts: Sequence[Part], gains: Sequence[PartGain]) -> Flow:
    for part, gain in zip(parts, gains, strict=True):
        flow = flow.through(part, gain)
    return flow


def logit_error(gain: Gain, length: int, eps: float, tiny: float) -> Line:
    """The error of the logits' vector for inputs of `length` steps, run with that machine eps."""
    gain.require()
    start = Flow(Line(0.0, 1.0), Line(0.0, 0.0), length, length, eps, UNDERFLOW * tiny)
    return walk(start, gain.chain, gain.parts).error
