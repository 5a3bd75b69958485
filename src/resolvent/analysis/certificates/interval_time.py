"""Stages along time: recurrences, pooling, weighted sums. `lengths` (b,) are of padded sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from resolvent.analysis.certificates.interval import Box, convolve, response, system_box
from resolvent.analysis.certificates.interval_stages import Memory
from resolvent.analysis.certificates.padding import own_steps
from resolvent.analysis.certificates.precision import BLOCK, TABLES, absolute_responses
from resolvent.ssm.rounding import count
from resolvent.ssm.system import System


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A time-invariant layer from zero, (b, l, m) -> (b, l, p); `backward` reads the reversed sequence and is added.

    The two directions share only the current step, so their sum is bounded as tightly as each. With lengths each
    sequence is reversed within its own length, and padding counts as zero.

    Examples:
        >>> rv.analysis.Recurrence(rv.LRU(2, 4).system()).backward is None
        True
    """

    system: System
    backward: System | None = None
    lengths: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        x = mask_padding(x, self.lengths)
        y = convolve(response(self.system, x.shape[-2]), x)
        if self.backward is None:
            return y
        return y + self._reverse(convolve(response(self.backward, x.shape[-2]), self._reverse(x)))

    def box(self, box: Box, memory: Memory) -> Box:
        box = Box(mask_padding(box.center, self.lengths), mask_padding(box.radius, self.lengths))
        forward = system_box(self.system, box)
        if self.backward is None:
            return forward.widened()
        turned = system_box(self.backward, Box(self._reverse(box.center), self._reverse(box.radius)))
        radius = forward.radius + self._reverse(turned.radius) - self._shared(box.radius)
        return Box(forward.center + self._reverse(turned.center), radius).widened()

    def _shared(self, radius: Tensor) -> Tensor:
        """The excess from counting the shared step twice: |f| + |g| - |f + g| at lag 0."""
        assert self.backward is not None
        f, g = (response(s, 1)[..., 0] for s in (self.system, self.backward))
        excess = f.abs() + g.abs() - (f + g).abs()
        return radius * excess if f.dim() == 1 else radius @ excess.mT

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        l = a.shape[-2]
        forward, backward = memory.once(
            id(self),
            lambda: (response(self.system, l), None if self.backward is None else response(self.backward, l)),
        )
        pulled = convolve(forward, a, reverse=True)
        if backward is not None:
            pulled = pulled + self._reverse(convolve(backward, self._reverse(a), reverse=True))
        return mask_padding(pulled, self.lengths), a.new_zeros(a.shape[:2])

    def rounding(self, given: Box, made: Box) -> Tensor:
        """Rounding of tables, states, and sums over time, by blocks or FFTs; the same at every step."""
        size = mask_padding(given.size, self.lengths)  # (b or 1, l, m)
        systems = [self.system] if self.backward is None else [self.system, self.backward]
        total = sum(
            (_bound_rounding(system, size) for system in systems), torch.zeros((), dtype=size.dtype, device=size.device)
        )
        return (total[..., None, :] + 2 * len(systems) * made.size).expand_as(made.center)

    def _reverse(self, x: Tensor) -> Tensor:
        return reverse_time(x, self.lengths)


def _bound_rounding(system: System, size: Tensor) -> Tensor:
    """The error in units of eps, for inputs of that size (b, l, m): (b, p)."""
    steps = size.shape[-2]
    h, states, tables = absolute_responses(system, steps)  # (p, m), or (d,) for a bank
    most, energy = size.amax(-2), size.norm(dim=-2)  # (b, m)
    peak = count(min(steps, BLOCK)) * h + count(system.states + system.inputs) * states + TABLES * tables
    spectrum = 6 * math.log2(4 * steps) * response(system, steps).norm(dim=-1)
    if system.bank:
        return most * peak + energy * spectrum
    return most @ peak.mT + energy @ spectrum.mT


@dataclass(frozen=True, eq=False)
class Pool:
    """(b, l, d) -> (b, d): the mean over time, or the last step; with lengths (b,) over each sequence's own steps.

    Examples:
        >>> rv.analysis.Pool("mean").kind
        'mean'
    """

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

    def rounding(self, given: Box, made: Box) -> Tensor:
        if self.kind == "last":
            return torch.zeros_like(made.size)
        return count(given.center.shape[-2]) * self.apply(given.size.expand_as(given.center))

    def _weights(self, x: Tensor) -> Tensor:
        """(b or 1, l, 1)."""
        t, l = torch.arange(x.shape[-2], device=x.device), x.shape[-2]
        lengths = torch.tensor([l], device=x.device) if self.lengths is None else self.lengths
        if self.kind == "last":
            return (t == lengths[:, None] - 1).double()[..., None]
        return ((t < lengths[:, None]).double() / lengths[:, None])[..., None]


@dataclass(frozen=True, eq=False)
class Taps:
    """(b, l, d) -> (b, d m): m weighted sums of each channel, as of a final state; K (d, m, l) by steps to the end."""

    K: Tensor
    lengths: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        return self._sums(self._K, x)

    def box(self, box: Box, memory: Memory) -> Box:
        return Box(self.apply(box.center), self._sums(self._K.abs(), box.radius.expand_as(box.center))).widened()

    def pull(self, a: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        each = a.unflatten(-1, self.K.shape[:2])  # (b, j, d, m)
        back = reverse_time(torch.einsum("bjdm,dml->bjld", each, self._K), self.lengths)
        return mask_padding(back, self.lengths), a.new_zeros(a.shape[:2])

    def rounding(self, given: Box, made: Box) -> Tensor:
        return count(self.K.shape[-1]) * self._sums(self._K.abs(), given.size.expand_as(given.center))

    def _sums(self, K: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("bld,dml->bdm", reverse_time(mask_padding(x, self.lengths), self.lengths), K).flatten(1)

    @property
    def _K(self) -> Tensor:
        return self.K.detach().double()


def mask_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (b, [j,] l, d) with zeros beyond each sequence's own steps."""
    if lengths is None:
        return x
    inside = own_steps(x.new_empty(len(lengths), x.shape[-2], 1), lengths)  # (b, l, 1)
    return x * (inside if x.dim() == 3 else inside[:, None])


def reverse_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (b, [j,] l, d) with each sequence reversed within its own steps; padding stays where it is."""
    if lengths is None:
        return x.flip(-2)
    t, own = torch.arange(x.shape[-2], device=x.device), lengths.to(x.device)[:, None]
    index = torch.where(t < own, own - 1 - t, t)[..., None]  # (b, l, 1)
    x = x.expand(len(lengths), *x.shape[1:])
    return x.gather(-2, (index if x.dim() == 3 else index[:, None]).expand_as(x))
