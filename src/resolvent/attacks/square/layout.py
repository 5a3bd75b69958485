"""The positions of Square's windows: squares on images (c, h, w), time segments x channels on sequences (l, d).

A window is a tensor of indices (b, g, a) into the flattened input: `g` groups (channels), each with its own sign, and
`a` indices in each. Only this file knows the shape of an input; the proposals in step.py use indices. A layout is an
`Image` or a `Sequence`:

    width     random numbers that determine a window
    extent    sides of a window covering about `share` of the input, each at least `least`
    bump      the bump that fills one channel's part of a window, in both orientations: (2, a)
    window    indices (b, g, a) of one window per sample from its numbers u; the second window has the same channels
    frame     the windows as numbers, for compiled code; None if samples have different indices
    stripes   the stripe of each index, (n,): the first Linf proposal has one sign per stripe
    tiles     bumps on a grid, in both orientations (2, n), and each index's tile (n,): the first L2 or L1 proposal
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.attacks.square.bump import bumps
from resolvent.attacks.square.deck import whole
from resolvent.ops.ascent import LEFT, LEFT_2, SIGNS, TOP, TOP_2

Form = Literal["auto", "image", "sequence"]
# A window for compiled code: two limits of its random numbers, their two strides, the stride of a channel, the number
# of channels, how many are drawn, and the indices (a,) of one channel's part.
Frame = tuple[tuple[int, int, int, int, int, int, int], NDArray[np.int64]]


def layout_of(x: Tensor, touchable: Tensor | None = None, form: Form = "auto", last: int = 1) -> Layout:
    """(b, c, h, w) is an image, (b, l, d) a sequence, anything else is a sequence of single values."""
    shape = tuple(x.shape[1:])
    if form == "image" and len(shape) != 3:
        raise ValueError(f'Square: form="image" needs an input (b, c, h, w), got {tuple(x.shape)}; use form="auto".')
    if len(shape) == 3 and form != "sequence":
        return Image(*shape, device=x.device, last=last)
    length, channels = shape if len(shape) == 2 else (math.prod(shape), 1)
    sequence = Sequence(length, channels, device=x.device)
    return sequence if touchable is None else sequence.within(touchable)


@dataclass(frozen=True, eq=False)
class Image:
    """Squares at any position; with last = 0 never on the last row or column, as in the published code."""

    c: int
    h: int
    w: int
    device: torch.device
    last: int = 1

    @property
    def width(self) -> int:
        return SIGNS + self.c

    def extent(self, share: float, least: int) -> tuple[int, ...]:
        """A square; if one side of the image is too short the other grows to keep the area."""
        area = share * self.h * self.w
        side = max(round(math.sqrt(area)), least)
        side += least > 1 and side % 2 == 0  # bumps have a centre
        if side <= min(self.h, self.w):
            return side, side
        if self.h <= self.w:
            return self.h, min(max(round(area / self.h), least), self.w)
        return min(max(round(area / self.w), least), self.h), self.w

    def bump(self, extent: tuple[int, ...], norm: str) -> Tensor:
        return bumps(extent, norm, self.device)

    def window(self, extent: tuple[int, ...], u: Tensor, second: bool = False) -> Tensor:
        top = whole(u[:, TOP_2 if second else TOP], self.h - extent[0] + self.last)  # (b,)
        left = whole(u[:, LEFT_2 if second else LEFT], self.w - extent[1] + self.last)
        return (top * self.w + left)[:, None, None] + _square(self.c, self.h, self.w, extent, self.device)  # (b, c, a)

    def frame(self, extent: tuple[int, ...]) -> Frame:
        limits = self.h - extent[0] + self.last, self.w - extent[1] + self.last
        return (*limits, self.w, 1, self.h * self.w, self.c, self.c), _places(*extent, self.w, 1)

    def stripes(self) -> Tensor:
        """Vertical lines, one sign per channel and column."""
        lines = torch.arange(self.c * self.w, device=self.device).view(self.c, 1, self.w)
        return lines.expand(self.c, self.h, self.w).flatten()

    def tiles(self, norm: str) -> tuple[Tensor, Tensor]:
        side = max(min(self.h, self.w) // 5, 1)
        down, across = self.h // side, self.w // side
        height, width = down * side, across * side
        top, left = (self.h - height) // 2, (self.w - width) // 2
        both = bumps((side, side), norm, self.device).view(2, side, side).repeat(1, down, across)
        drawn = torch.zeros(2, self.c, self.h, self.w, device=self.device)
        drawn[:, :, top : top + height, left : left + width] = both[:, None]
        which = torch.zeros(self.c, self.h, self.w, dtype=torch.int64, device=self.device)
        grid = torch.arange(self.c * down * across, device=self.device).view(self.c, down, across)
        grid = grid.repeat_interleave(side, 1).repeat_interleave(side, 2)
        which[:, top : top + height, left : left + width] = grid
        return drawn.flatten(1), which.flatten()

    def select(self, index: Tensor) -> Image:
        return self


@lru_cache(maxsize=64)
def _places(down: int, along: int, row: int, step: int) -> NDArray[np.int64]:
    return (np.arange(down)[:, None] * row + np.arange(along) * step).ravel()


@lru_cache(maxsize=64)
def _square(c: int, h: int, w: int, extent: tuple[int, ...], device: torch.device) -> Tensor:
    """Indices of a window at the upper left corner: (c, a)."""
    row = torch.arange(extent[0], device=device)[:, None] * w
    inside = (row + torch.arange(extent[1], device=device)).flatten()  # (a,)
    return torch.arange(c, device=device)[:, None] * (h * w) + inside


@dataclass(frozen=True, eq=False)
class Sequence:
    """Contiguous time segments on a subset of the channels.

    With `order` (b, l) and `count` (b,) a segment covers only the free times: `order` lists them first.
    """

    l: int
    d: int
    device: torch.device
    order: Tensor | None = None
    count: Tensor | None = None

    @property
    def width(self) -> int:
        return SIGNS + 2 * self.d

    def within(self, touchable: Tensor) -> Sequence:
        """Keep windows off padding: times at which nothing may change (b, l, d) are last in `order`."""
        alive = touchable.reshape(-1, self.l, self.d).any(2)  # (b, l)
        return replace(self, order=(~alive).to(torch.int8).argsort(dim=1, stable=True), count=alive.sum(1))

    def extent(self, share: float, least: int) -> tuple[int, ...]:
        """Both sides shrink equally; rounding of the number of channels is compensated in time."""
        channels = min(max(round(math.sqrt(share) * self.d), 1), self.d)
        return channels, min(max(round(share * self.l * self.d / channels), least, 1), self.l)

    def bump(self, extent: tuple[int, ...], norm: str) -> Tensor:
        return bumps(extent[1:], norm, self.device)

    def window(self, extent: tuple[int, ...], u: Tensor, second: bool = False) -> Tensor:
        channels, length = extent
        free = self.l - length if self.count is None else (self.count - length).clamp_min(0)
        start = whole(u[:, TOP_2 if second else TOP], free + 1)  # (b,)
        times = start[:, None] + torch.arange(length, device=self.device)  # (b, length)
        if self.order is not None:
            times = self.order.gather(1, times)
        return times[:, None, :] * self.d + self._channels(channels, u)[:, :, None]

    def frame(self, extent: tuple[int, ...]) -> Frame | None:
        if self.order is not None:
            return None
        channels, length = extent
        return (self.l - length + 1, 0, self.d, 0, 1, self.d, channels), _places(1, length, 0, self.d)

    def stripes(self) -> Tensor:
        """About sqrt(l) spans of time, one sign per span and channel, like columns of an unrolled image."""
        stretch = torch.arange(self.l, device=self.device) // max(math.isqrt(self.l), 1)
        return (stretch[:, None] * self.d + torch.arange(self.d, device=self.device)).flatten()

    def tiles(self, norm: str) -> tuple[Tensor, Tensor]:
        side = max(self.l // 25, min(3, self.l))
        count = self.l // side
        drawn = torch.zeros(2, self.l, self.d, device=self.device)
        drawn[:, : count * side] = bumps((side,), norm, self.device).repeat(1, count)[:, :, None]
        stretch = (torch.arange(self.l, device=self.device) // side).clamp_max(count - 1)
        return drawn.flatten(1), (stretch[:, None] * self.d + torch.arange(self.d, device=self.device)).flatten()

    def select(self, index: Tensor) -> Sequence:
        if self.order is None or self.count is None:
            return self
        return replace(self, order=self.order[index], count=self.count[index])

    def _channels(self, number: int, u: Tensor) -> Tensor:
        if number == self.d:
            return torch.arange(self.d, device=self.device)[None]
        return u[:, SIGNS + self.d : SIGNS + 2 * self.d].topk(number, dim=1).indices  # (b, number)


Layout = Image | Sequence
