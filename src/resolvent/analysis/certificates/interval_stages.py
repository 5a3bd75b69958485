"""A network as a chain of stages for propagating intervals and linear bounds.

Each stage has four methods: `apply` (the function), `box` (from a box of inputs to a box of outputs), `pull` (from a
linear bound on its output to one on its input) and `rounding` (its floating-point error, which is added to its box and
subtracted from its bounds: both then hold for the network as run). A caller writes its network as a list of
stages, time stages from `interval_time`:

    branch = [Recurrence(layer.system()), Pointwise("gelu"), Affine(W, b)]
    stages = [Affine(W_in, b_in), Skip(branch), Pool("mean"), Affine(V, c)]

LayerNorm, softmax and products of two activations have no stage: they have no useful bound on a box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.analysis.certificates.interval import Box
from resolvent.analysis.certificates.interval_pointwise import Function, Lines, curve, lines, value_range
from resolvent.ssm.rounding import OPERATION, POINTWISE, count

CHUNK = 64  # neurons pulled back at once
UNDERFLOW = 1e4  # allowance per entry in smallest normal numbers


class Memory:
    """Data of the box pass for the pass of linear bounds, and its path so far.

    kept   by stage id: its lines, its impulse responses, or the weights of its steps
    path   the stages between the input box `root` and the current stage
    rows   neurons per sample up to which a pointwise function's input is bounded linearly, over the whole path,
           not by the last box alone (0: never)
    run    the arithmetic in which the network runs; None: exact
    noise  by stage id: its rounding error, entry by entry
    """

    def __init__(self, root: Box, rows: int = 0, run: Arithmetic | None = None) -> None:
        self.root = root
        self.rows = rows
        self.run = run
        self.kept: dict[int, Any] = {}
        self.noise: dict[int, Tensor] = {}
        self.path: list[Stage] = []

    def once(self, key: int, make: Callable[[], Any]) -> Any:
        """The result of `make`, cached by `key`."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def tightened(self, box: Box) -> Box:
        """The box intersected with linear bounds of its entries, if they are few enough."""
        shape = box.center.shape[1:]
        if shape.numel() > self.rows:
            return box
        eye = torch.eye(shape.numel(), dtype=torch.float64, device=box.center.device).unflatten(1, shape)[None]
        pieces = eye.split(CHUNK, 1)  # (1, j, ...)
        low = torch.cat([self._least(a) for a in pieces], 1).unflatten(1, shape)
        high = -torch.cat([self._least(-a) for a in pieces], 1).unflatten(1, shape)
        low, high = torch.maximum(box.low, low), torch.minimum(box.high, high)
        return Box.between(low, torch.maximum(low, high)).widened()

    def _least(self, a: Tensor) -> Tensor:
        a, offset = pull_back(self.path, a, self)
        return least(a, self.root) + offset

    def rounded(self, stage: Stage, given: Box, made: Box) -> Box:
        """The box of a stage's computed output, storing its noise."""
        if self.run is None:
            return made
        noise = self.run.noise(stage.rounding(given, made))
        self.noise[id(stage)] = noise
        return Box(made.center, made.radius + noise)


@dataclass(frozen=True)
class Arithmetic:
    """Machine epsilon, and the smallest and largest number, of a dtype."""

    eps: float
    tiny: float
    largest: float

    def noise(self, rounding: Tensor) -> Tensor:
        """`rounding` in units of eps; infinite where terms of that size overflow."""
        return torch.where(rounding < self.largest, self.eps * rounding + UNDERFLOW * self.tiny, math.inf)


class Stage(Protocol):
    def apply(self, x: Tensor) -> Tensor:
        """The stage's function, in float64."""

    def box(self, box: Box, memory: Memory) -> Box:
        """A box around the outputs."""

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """For a functional sum(a * y), a (b, j, ...): a_in and k (b, j) with sum(a * y) >= sum(a_in * x) + k."""

    def rounding(self, given: Box, made: Box) -> Tensor:
        """The rounding error of the stage, entry by entry of `made`, in units of eps, for inputs in `given`."""


@dataclass(frozen=True, eq=False)
class Affine:
    """y = W x + b on the last axis: W (out, in), b (out,) or None; `terms` (out,) sizes of what b was computed from.

    Examples:
        >>> rv.analysis.Affine(torch.eye(2)).W.shape
        torch.Size([2, 2])
    """

    W: Tensor
    b: Tensor | None = None
    terms: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        y = x @ self._W.mT
        return y if self.b is None else y + self.b.detach().double()

    def box(self, box: Box, memory: Memory) -> Box:
        return Box(self.apply(box.center), box.radius @ self._W.abs().mT).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        offset = a.new_zeros(a.shape[:2]) if self.b is None else total(a * self.b.detach().double())
        return a @ self._W, offset

    def rounding(self, given: Box, made: Box) -> Tensor:
        products = count(self.W.shape[1]) * (given.size @ self._W.abs().mT)
        terms = self.b if self.terms is None else self.terms
        return products if terms is None else products + OPERATION * terms.detach().double().abs()

    @property
    def _W(self) -> Tensor:
        return self.W.detach().double()


@dataclass(frozen=True, eq=False)
class Pointwise:
    """An elementwise function.

    Examples:
        >>> rv.analysis.Pointwise("relu").function
        'relu'
    """

    function: Function

    def __post_init__(self) -> None:
        curve(self.function)

    def apply(self, x: Tensor) -> Tensor:
        return curve(self.function).f(x)

    def box(self, box: Box, memory: Memory) -> Box:
        box = memory.tightened(box)
        memory.kept[id(self)] = lines(self.function, box.low, box.high)
        return Box.between(*value_range(self.function, box.low, box.high)).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        found = Lines(*(t[:, None] for t in memory.kept[id(self)]))  # (b, 1, ...)
        up, down = a.clamp_min(0), a.clamp_max(0)
        offset = total(up * found.low + down * found.high)
        return up * found.slope_low + down * found.slope_high, offset

    def rounding(self, given: Box, made: Box) -> Tensor:
        """relu is exact; the others err by a few units of their value, or of their argument if they multiply by it."""
        if self.function in ("none", "relu"):
            return torch.zeros_like(made.size)
        return POINTWISE * torch.maximum(made.size, given.size if self.function != "sigmoid" else made.size)


@dataclass(frozen=True, eq=False)
class Skip:
    """y = x + branch(x).

    Examples:
        >>> rv.analysis.Skip([rv.analysis.Pointwise("relu")]).branch[0].function
        'relu'
    """

    branch: Sequence[Stage] = field(default_factory=tuple)

    def apply(self, x: Tensor) -> Tensor:
        return x + run(self.branch, x)

    def box(self, box: Box, memory: Memory) -> Box:
        out = boxes(self.branch, box, memory)
        return Box(box.center + out.center, box.radius + out.radius).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        back, offset = pull_back(self.branch, a, memory)
        return a + back, offset

    def rounding(self, given: Box, made: Box) -> Tensor:
        return 2 * (given.size + made.size)


def run(stages: Sequence[Stage], x: Tensor) -> Tensor:
    """The network's function, in float64."""
    x = x.detach().double()
    for stage in stages:
        x = stage.apply(x)
    return x


def boxes(stages: Sequence[Stage], box: Box, memory: Memory) -> Box:
    """Propagate boxes through the stages; restores the path afterwards."""
    come = len(memory.path)
    for stage in stages:
        box = memory.rounded(stage, box, stage.box(box, memory))
        memory.path.append(stage)
    del memory.path[come:]
    return box


def pull_back(stages: Sequence[Stage], a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Pull bounds back from the last stage to the first."""
    offset = a.new_zeros(a.shape[:2])
    for stage in reversed(stages):
        noise = memory.noise.get(id(stage))
        if noise is not None:
            offset = offset - total(a.abs() * noise[:, None])
        a, more = stage.pull(a, memory)
        offset = offset + more
    return a, offset


def least(a: Tensor, box: Box) -> Tensor:
    """min over the box of sum(a * x): a (b, j, ...) -> (b, j), minus the rounding of the sums."""
    center, radius = box.center[:, None], box.radius.expand_as(box.center)[:, None]
    terms, spread = a * center, (a.abs() * radius).flatten(2).sum(2)
    return terms.flatten(2).sum(2) - spread - 1e-12 * (terms.abs().flatten(2).sum(2) + spread)


def total(terms: Tensor) -> Tensor:
    """(b, j, ...) -> (b, j)."""
    return terms.flatten(2).sum(2)
