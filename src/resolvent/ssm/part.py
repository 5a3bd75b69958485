"""A model as a tree of components with known gains: provided by models, used by certificates.

A list of parts is a chain: its Lipschitz constant is the product of theirs. All constants are L2: of sequences
(b, l, d) over time and channels together, or of vectors after pooling.

    kind       constant                                                     carries
    system     H-infinity norm of `system`; `lipschitz`, where given, is an upper bound known by construction
    residual   1 + product of `parts`                                       parts: the branch, in order
    series     product of `parts`                                           parts, in order
    sum        sum of the constants of `parts`                              parts applied to the same input
    the rest   `lipschitz`, or unbounded with `reason` where it is None     parts, if any, only for display

A bias adds a constant: it changes no Lipschitz constant, but |f(x)| <= L |x| then fails at x = 0. `bias` parts
therefore have lipschitz 1 and a reason why a pure gain does not exist. `rounding` bounds the floating-point error of
a part (systems are bounded from their own matrices); `least` is the number of steps that a sequence must have for the
constant to hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from resolvent.ssm.rounding import Allowance
from resolvent.ssm.system import System

SystemGain = Callable[[System], float]
COMPOSED = ("residual", "series", "sum")
PartKind = Literal[
    "linear",
    "system",
    "pointwise",
    "residual",
    "gate",
    "norm",
    "pool",
    "attention",
    "selective",
    "embedding",
    "bias",
    "series",
    "sum",
]


@dataclass(frozen=True)
class Part:
    """One component. `name` is its dotted path in the model.

    Examples:
        >>> rv.ssm.Part("head", "linear", 2.0).lipschitz
        2.0
    """

    name: str
    kind: PartKind
    lipschitz: float | None = None
    system: System | None = None
    parts: tuple[Part, ...] = ()
    reason: str = ""
    rounding: Allowance | None = None
    least: int = 1

    def constant(self, system_gain: SystemGain | None = None) -> float | None:
        """The Lipschitz constant; None if there is none. `system_gain` measures linear systems; without it they count
        with the bound known by construction."""
        if self.kind in COMPOSED:
            return compose(self.kind, [part.constant(system_gain) for part in self.parts])
        measured = system_gain is not None and self.kind == "system" and self.system is not None
        return system_gain(self.system) if measured else self.lipschitz  # type: ignore[misc, arg-type]

    def unbounded(self) -> Iterator[Part]:
        """The components without a finite constant."""
        return (leaf for leaf in self.leaves() if leaf.lipschitz is None and leaf.system is None)

    def leaves(self) -> Iterator[Part]:
        """The leaf components, in order."""
        if self.kind in COMPOSED:
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self


def compose(kind: str, constants: Sequence[float | None]) -> float | None:
    """The constant of a residual, a series or a sum from those of its parts; None where one of them does not exist."""
    known = [constant for constant in constants if constant is not None]
    if len(known) < len(constants):
        return None
    return math.fsum(known) if kind == "sum" else math.prod(known, start=1.0) + (kind == "residual")


def chained(parts: Sequence[Part], system_gain: SystemGain | None = None) -> float | None:
    """The product of the constants of a chain; None where one of them does not exist.

    Examples:
        >>> parts = [rv.ssm.Part("enter", "linear", 2.0), rv.ssm.Part("leave", "linear", 1.5)]
        >>> rv.ssm.chained(parts, lambda system: 1.0)
        3.0
    """
    return compose("series", [part.constant(system_gain) for part in parts])
