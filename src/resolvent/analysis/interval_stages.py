"""A network as a chain of stages that intervals and linear bounds can be carried through.

Each stage knows three things: `apply` (what it computes), `box` (what it makes of a box of inputs) and `pull` (how a
linear bound on its output becomes one on its input). A caller writes its network down as a list of them:

    branch = [Recurrence(layer.system()), Pointwise("gelu"), Affine(W, b)]
    stages = [Affine(W_in, b_in), Skip(branch), Pool("mean"), Affine(V, c)]

LayerNorm, softmax and products of two activations have no stage: they have no useful bound on a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from resolvent.analysis.interval import Box, convolved, response, system_box
from resolvent.analysis.interval_pointwise import Function, Lines, curve, lines, value_range
from resolvent.ssm.system import System

CHUNK = 64  # neurons that are pulled back at once


class Memory:
    """What the pass of boxes leaves for the pass of bounds, and the way that it has come.

    kept   by the id of a stage: its lines, its impulse responses, or the weights of its steps
    path   the stages between the input box `root` and the stage at hand
    rows   neurons of one sample up to which a pointwise function's input is bounded linearly, over the whole path,
           and not by the last box alone (0: never)
    """

    def __init__(self, root: Box, rows: int = 0) -> None:
        self.root = root
        self.rows = rows
        self.kept: dict[int, Any] = {}
        self.path: list[Stage] = []

    def once(self, key: int, make: Callable[[], Any]) -> Any:
        """What `make` returns, made on the first call for `key`."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def tightened(self, box: Box) -> Box:
        """The box cut by linear bounds of each of its entries, where they are few enough."""
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
        a, offset = pulled(self.path, a, self)
        return least(a, self.root) + offset


class Stage(Protocol):
    def apply(self, x: Tensor) -> Tensor:
        """The stage itself, in float64."""

    def box(self, box: Box, memory: Memory) -> Box:
        """A box around what comes out."""

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """For a functional sum(a * y), a (b, j, ...): a_in and k (b, j) with sum(a * y) >= sum(a_in * x) + k."""


@dataclass(frozen=True, eq=False)
class Affine:
    """y = W x + b on the last axis: W (out, in), b (out,) or None."""

    W: Tensor
    b: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        y = x @ self._W.mT
        return y if self.b is None else y + self.b.detach().double()

    def box(self, box: Box, memory: Memory) -> Box:
        return Box(self.apply(box.center), box.radius @ self._W.abs().mT).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        offset = a.new_zeros(a.shape[:2]) if self.b is None else _total(a * self.b.detach().double())
        return a @ self._W, offset

    @property
    def _W(self) -> Tensor:
        return self.W.detach().double()


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A time-invariant layer from rest, (b, l, m) -> (b, l, p); `backward` reads the reversed sequence and is added.

    The two directions meet in one step only, so their sum is bounded as tightly as each of them.
    """

    system: System
    backward: System | None = None

    def apply(self, x: Tensor) -> Tensor:
        y = convolved(response(self.system, x.shape[-2]), x)
        if self.backward is None:
            return y
        return y + convolved(response(self.backward, x.shape[-2]), x.flip(-2)).flip(-2)

    def box(self, box: Box, memory: Memory) -> Box:
        forward = system_box(self.system, box)
        if self.backward is None:
            return forward.widened()
        turned = system_box(self.backward, Box(box.center.flip(-2), box.radius.flip(-2)))
        radius = forward.radius + turned.radius.flip(-2) - self._shared(box.radius)
        return Box(forward.center + turned.center.flip(-2), radius).widened()

    def _shared(self, radius: Tensor) -> Tensor:
        """What the step that both directions see is counted too much: |f| + |g| - |f + g| at lag 0."""
        assert self.backward is not None
        f, g = (response(s, 1)[..., 0] for s in (self.system, self.backward))
        excess = f.abs() + g.abs() - (f + g).abs()
        return radius * excess if f.dim() == 1 else radius @ excess.mT

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        l = a.shape[-2]
        forward, backward = memory.once(id(self), lambda: self._responses(l))
        pulled = convolved(forward, a, reverse=True)
        if backward is not None:
            pulled = pulled + convolved(backward, a.flip(-2), reverse=True).flip(-2)
        return pulled, a.new_zeros(a.shape[:2])

    def _responses(self, l: int) -> tuple[Tensor, Tensor | None]:
        return response(self.system, l), None if self.backward is None else response(self.backward, l)


@dataclass(frozen=True, eq=False)
class Pointwise:
    """A function of each entry alone."""

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
        offset = _total(up * found.low + down * found.high)
        return up * found.slope_low + down * found.slope_high, offset


@dataclass(frozen=True, eq=False)
class Skip:
    """y = x + branch(x)."""

    branch: Sequence[Stage] = field(default_factory=tuple)

    def apply(self, x: Tensor) -> Tensor:
        return x + run(self.branch, x)

    def box(self, box: Box, memory: Memory) -> Box:
        out = boxes(self.branch, box, memory)
        return Box(box.center + out.center, box.radius + out.radius).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        back, offset = pulled(self.branch, a, memory)
        return a + back, offset


@dataclass(frozen=True, eq=False)
class Pool:
    """(b, l, d) -> (b, d): the mean over time, or the last step; with lengths (b,) over each sequence's own steps."""

    kind: Literal["mean", "last"]
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("mean", "last"):
            raise ValueError(f"Pool: kind must be 'mean' or 'last', got {self.kind!r}; a maximum is not linear.")

    def apply(self, x: Tensor) -> Tensor:
        return (x * self._weights(x)).sum(-2)

    def box(self, box: Box, memory: Memory) -> Box:
        memory.kept[id(self)] = self._weights(box.center)
        return Box(self.apply(box.center), self.apply(box.radius.expand_as(box.center))).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        return a[:, :, None, :] * memory.kept[id(self)][:, None], a.new_zeros(a.shape[:2])

    def _weights(self, x: Tensor) -> Tensor:
        """(b or 1, l, 1)."""
        t, l = torch.arange(x.shape[-2], device=x.device), x.shape[-2]
        lengths = torch.tensor([l], device=x.device) if self.lengths is None else self.lengths
        if self.kind == "last":
            return (t == lengths[:, None] - 1).double()[..., None]
        return ((t < lengths[:, None]).double() / lengths[:, None])[..., None]


@dataclass(frozen=True, eq=False)
class Taps:
    """(b, l, d) -> (b, d m): m weighted sums over time of each channel, K (d, m, l), such as a final state."""

    K: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return _taps(self.K.detach().double(), x)

    def box(self, box: Box, memory: Memory) -> Box:
        return Box(self.apply(box.center), _taps(self.K.detach().double().abs(), box.radius)).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        each = a.unflatten(-1, self.K.shape[:2])  # (b, j, d, m)
        return torch.einsum("bjdm,dml->bjld", each, self.K.detach().double()), a.new_zeros(a.shape[:2])


def run(stages: Sequence[Stage], x: Tensor) -> Tensor:
    """The network itself, in float64."""
    x = x.detach().double()
    for stage in stages:
        x = stage.apply(x)
    return x


def boxes(stages: Sequence[Stage], box: Box, memory: Memory) -> Box:
    """From stage to stage; afterwards the way is again the one that led here."""
    come = len(memory.path)
    for stage in stages:
        box = stage.box(box, memory)
        memory.path.append(stage)
    del memory.path[come:]
    return box


def pulled(stages: Sequence[Stage], a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """From the last stage to the first."""
    offset = a.new_zeros(a.shape[:2])
    for stage in reversed(stages):
        a, more = stage.pull(a, memory)
        offset = offset + more
    return a, offset


def least(a: Tensor, box: Box) -> Tensor:
    """min over the box of sum(a * x): a (b, j, ...) -> (b, j), drawn down by the rounding of the sums."""
    center, radius = box.center[:, None], box.radius.expand_as(box.center)[:, None]
    terms, spread = a * center, (a.abs() * radius).flatten(2).sum(2)
    return terms.flatten(2).sum(2) - spread - 1e-12 * (terms.abs().flatten(2).sum(2) + spread)


def _total(terms: Tensor) -> Tensor:
    return terms.flatten(2).sum(2)


def _taps(K: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bld,dml->bdm", x, K).flatten(1)
