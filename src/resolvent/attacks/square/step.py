"""Square's proposals (Andriushchenko et al. 2020, algorithms 2 and 3): a first point, then one window at a time.

Everything is flat: x and best are (b, n), a window is indices (b, g, a), u (b, width) are a query's random numbers.
The two kinds of step, `Corner` for Linf and `Bump` for L2 and L1, return points inside the threat. Row i of u is for
the sample `sample[i]`, or for the sample i. On a CPU points are drawn by compiled code (square_numba.py); `draw` is
`next` in torch operations that do not synchronise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.square.layout import Layout, layout_of
from resolvent.attacks.threat.region import Region, inward, rows_of, slack
from resolvent.attacks.threat.threat import Threat
from resolvent.ops.ascent import SIGNS, TURN
from resolvent.runtime.dispatch import choose, nothing, numba_or
from resolvent.runtime.memory import plain

_UPSCALE = 3.0  # L1: the window overshoots before the projection (the published code: by the 3 channels of an image)
_TINY = 1e-12
_SHY = 1 - 1e-5  # L1: rounding of x + delta over many entries exceeds the tolerance
_TILT, _SIDE = 10, 11  # streams of the first point


def step_for(x: Tensor, threat: Threat, layout: Layout, thrifty: bool = True) -> Step:
    """x (b, ...) unflattened, threat fitted to it."""
    if threat.norm == "linf":
        reach = 2 * threat.radius(x) + 1
        low, high = threat.project(x - reach, x), threat.project(x + reach, x)
        return Corner(layout, low.flatten(1), high.flatten(1), thrifty)
    free = None if threat.mask is None else threat.masked(torch.ones_like(x)).flatten(1)
    room = (threat if threat.norm == "l2" else threat.scaled(_SHY)).around(x).flat()
    nearest = None if threat.norm == "l2" else room
    return Bump(layout, threat.norm, nearest, room.low, room.high, threat.radius(x).view(-1, 1), x.flatten(1), free)


@dataclass(frozen=True, eq=False)
class Corner:
    """Linf: every value is at one end of its range, `low` or `high` (b, n)."""

    layout: Layout
    low: Tensor
    high: Tensor
    thrifty: bool = True  # False: draw like the published code, whether anything changes or not

    def first(self, draws: Draws) -> Tensor:
        stripe = self.layout.stripes()  # (n,)
        up = draws.bits(_SIDE, 0, (int(stripe[-1]) + 1,)) < 0
        return torch.where(up[:, stripe], self.high, self.low)

    def next(self, best: Tensor, share: float, u: Tensor, sample: Tensor | None = None) -> Tensor:
        """One window, one side per channel. A draw that would change nothing is inverted: no query is wasted."""
        frame = self.layout.frame(self.layout.extent(share, 1))
        if frame is not None and (code := find_compiled(best)) is not None:
            ends = _array(self.low), _array(self.high)
            drawn = code.corner(_array(best), ends, self.thrifty, _numbers(sample, best), _array(u), frame)
            return torch.from_numpy(drawn)
        return self.draw(best, share, u, sample)

    def draw(self, best: Tensor, share: float, u: Tensor, sample: Tensor | None = None) -> Tensor:
        return self._next(best, share, u) if sample is None else self.select(sample)._next(best[sample], share, u)

    def _next(self, best: Tensor, share: float, u: Tensor) -> Tensor:
        at = self.layout.window(self.layout.extent(share, 1), u)  # (b, g, a)
        up = _signs(u, at) < 0
        flat = at.flatten(1)
        low, high = _take(self.low, at), _take(self.high, at)
        if self.thrifty:
            wasted = (torch.where(up, high, low) == _take(best, at)).flatten(1).all(1)
            up = up ^ wasted[:, None, None]
        return best.scatter(1, flat, torch.where(up, high, low).flatten(1))

    def select(self, index: Tensor) -> Corner:
        return Corner(self.layout.select(index), self.low[index], self.high[index], self.thrifty)


@dataclass(frozen=True, eq=False)
class Bump:
    """L2 and L1: the norm inside one window is moved into another, in the shape of a bump."""

    layout: Layout
    norm: str
    room: Region | None  # L1: of radius slightly below eps
    low: Tensor | None  # (1 or b, n) bounds: clipping to them moves towards x, so that no norm can grow
    high: Tensor | None
    eps: Tensor  # (b, 1)
    x: Tensor  # (b, n)
    free: Tensor | None  # (b, n) 1 where the threat may act, else 0; None: everywhere

    def first(self, draws: Draws) -> Tensor:
        drawn, tile = self.layout.tiles(self.norm)  # (2, n), (n,)
        count = int(tile.max()) + 1
        turned = (draws.bits(_TILT, 0, (count,)) < 0)[:, tile]
        delta = torch.where(turned, drawn[1], drawn[0]) * draws.sign(_SIDE, 0, (count,))[:, tile]
        delta = delta.to(self.x.dtype)
        return self._inside(delta if self.free is None else delta * self.free)

    def next(self, best: Tensor, share: float, u: Tensor, sample: Tensor | None = None) -> Tensor:
        extent = self.layout.extent(share, 3)
        frame = self.layout.frame(extent)
        if self.norm == "l2" and frame is not None and (code := find_compiled(best, "bump")) is not None:
            shape = self.layout.bump(extent, self.norm).to(best.dtype)
            drawn = code.bump(_array(best), self._region(), _array(shape), _numbers(sample, best), _array(u), frame)
            return torch.from_numpy(drawn)
        return self.draw(best, share, u, sample)

    def draw(self, best: Tensor, share: float, u: Tensor, sample: Tensor | None = None) -> Tensor:
        return self._next(best, share, u) if sample is None else self.select(sample)._next(best[sample], share, u)

    def _region(self) -> tuple[Any, ...]:
        parts = self.x, self.eps, self.low, self.high, self.free
        return tuple(_array(self.x[:0] if part is None else part) for part in parts)

    def _next(self, best: Tensor, share: float, u: Tensor) -> Tensor:
        delta = best - self.x
        extent = self.layout.extent(share, 3)
        gain = self.layout.window(extent, u)  # (b, g, a) receives
        give = self.layout.window(extent, u, second=True)  # (b, g, a) is emptied
        emptied = delta.scatter(1, give.flatten(1), 0.0)
        held = self._size(_take(delta, give)) + self._size(_take(emptied, gain))  # (b, g, 1) in both windows together
        unused = (self._budget() - self._size(delta)[:, :, None]).clamp_min(0.0) / gain.shape[1]  # (b, 1, 1)
        new = self._unit(self._bump(extent, gain, u) + self._unit(_take(delta, gain)))
        moved = emptied.scatter(1, gain.flatten(1), (new * self._length(held + unused)).flatten(1))
        return self._inside(moved)

    def select(self, index: Tensor) -> Bump:
        free = None if self.free is None else self.free[index]
        layout, room = self.layout.select(index), None if self.room is None else self.room.select(index)
        low, high = rows_of(self.low, index), rows_of(self.high, index)
        return Bump(layout, self.norm, room, low, high, self.eps[index], self.x[index], free)

    def _bump(self, extent: tuple[int, ...], at: Tensor, u: Tensor) -> Tensor:
        shape = self.layout.bump(extent, self.norm).to(self.x.dtype)  # (2, a)
        turned = (u[:, TURN] < 0.5)[:, None, None]
        bump = torch.where(turned, shape[1], shape[0]) * _signs(u, at)
        return bump if self.free is None else bump * _take(self.free, at)

    def _size(self, part: Tensor) -> Tensor:
        """The quantity additive over disjoint parts: the L1 norm, or the square of the L2 norm."""
        return (part.square() if self.norm == "l2" else part.abs()).sum(-1, keepdim=True)

    def _length(self, size: Tensor) -> Tensor:
        return size.sqrt() if self.norm == "l2" else size * _UPSCALE

    def _unit(self, part: Tensor) -> Tensor:
        size = self._size(part)
        return part / ((size.sqrt() if self.norm == "l2" else size) + _TINY)

    def _budget(self) -> Tensor:
        eps = self.eps[:, :, None]  # (b, 1, 1)
        return eps.square() if self.norm == "l2" else eps

    def _inside(self, delta: Tensor) -> Tensor:
        """L2: to the sphere, then clipped to the bounds. L1: the nearest point of ball and bounds."""
        if self.room is not None:
            return self.room.project(delta.add_(self.x))
        length = torch.linalg.vector_norm(delta, 2, dim=1, keepdim=True, dtype=torch.float64)
        shy = self.eps.double() * (1 - slack(delta.dtype, delta.shape[1]))
        delta = (delta * (shy / length.clamp_min(_TINY))).to(delta.dtype)
        moved = inward(self.x, self.x + delta, delta.abs())
        return moved if self.low is None else moved.clamp(self.low, self.high)


Step = Corner | Bump


def find_compiled(best: Tensor, step: str = "corner") -> Any:
    """The module of compiled steps, if available and this step works."""
    return choose(f"square {step}", _CANDIDATES[step], best.device, best.dtype)()


def _array(x: Tensor) -> Any:
    return plain(x).numpy()


def _numbers(sample: Tensor | None, best: Tensor) -> Any:
    return np.arange(len(best)) if sample is None else _array(sample)


def _signs(u: Tensor, at: Tensor) -> Tensor:
    """-1 or 1 for each channel of a window: (b, g, 1)."""
    return torch.where(u[:, SIGNS : SIGNS + at.shape[1], None] < 0.5, -1.0, 1.0).to(u.dtype)


def _take(values: Tensor, at: Tensor) -> Tensor:
    return values.gather(1, at.flatten(1)).view(at.shape)


# -- choice of the kernel ---------------------------------------------------------------------------------------------


def _load_numba() -> Any:
    from resolvent.ops.ascent import square_numba

    return lambda: square_numba


def _probe_corner(load: Any, device: torch.device, dtype: torch.dtype) -> bool:
    best, u, layout = _line(dtype)
    step = Corner(layout, best - 1, best + 1)
    ends, frame = (step.low.numpy(), step.high.numpy()), layout.frame(layout.extent(0.4, 1))
    found = load().corner(best.numpy(), ends, True, np.arange(2), u.numpy(), frame)
    return torch.equal(torch.from_numpy(found), step._next(best, 0.4, u))


def _probe_bump(load: Any, device: torch.device, dtype: torch.dtype) -> bool:
    best, u, layout = _line(dtype)
    x = best.flip(1)
    step = Bump(layout, "l2", None, x[:1] - 1, x[:1] + 1, torch.full_like(x[:, :1], 0.7), x, None)
    extent = layout.extent(0.4, 3)
    shape, frame = layout.bump(extent, "l2").to(dtype), layout.frame(extent)
    found = load().bump(best.numpy(), step._region(), shape.numpy(), np.arange(2), u.numpy(), frame)
    return torch.allclose(torch.from_numpy(found), step._next(best, 0.4, u), atol=1e-5)


def _line(dtype: torch.dtype) -> tuple[Tensor, Tensor, Layout]:
    """Two samples of nine values, their random numbers, and their layout."""
    best = torch.sin(torch.arange(18)).to(dtype).view(2, 9)
    layout = layout_of(best)
    return best, torch.linspace(0.1, 0.8, 2 * layout.width).view(2, -1), layout


_CANDIDATES = {
    "corner": numba_or(nothing, _load_numba, _probe_corner),
    "bump": numba_or(nothing, _load_numba, _probe_bump),
}
