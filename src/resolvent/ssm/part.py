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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from resolvent.ssm.rounding import Allowance
from resolvent.ssm.system import System

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

    def constant(self, system_gain: Callable[[System], float]) -> float | None:
        """The Lipschitz constant with `system_gain` for linear systems; None if there is none."""
        if self.kind == "system" and self.system is not None:
            return system_gain(self.system)
        if self.kind == "residual":
            branch = chained(self.parts, system_gain)
            return None if branch is None else 1.0 + branch
        if self.kind == "series":
            return chained(self.parts, system_gain)
        if self.kind == "sum":
            constants = [part.constant(system_gain) for part in self.parts]
            return None if None in constants else sum(c for c in constants if c is not None)
        return self.lipschitz

    def unbounded(self) -> Iterator[Part]:
        """The components without a finite constant."""
        if self.kind in ("residual", "series", "sum"):
            for part in self.parts:
                yield from part.unbounded()
        elif self.lipschitz is None and self.system is None:
            yield self

    def leaves(self) -> Iterator[Part]:
        """The leaf components, in order."""
        if self.kind in ("residual", "series", "sum"):
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self


def chained(parts: Sequence[Part], system_gain: Callable[[System], float]) -> float | None:
    """The product of the constants of a chain; None where one of them does not exist.

    Examples:
        >>> parts = [rv.ssm.Part("enter", "linear", 2.0), rv.ssm.Part("leave", "linear", 1.5)]
        >>> rv.ssm.chained(parts, lambda system: 1.0)
        3.0
    """
    product = 1.0
    for part in parts:
        constant = part.constant(system_gain)
        if constant is None:
            return None
        product *= constant
    return product
