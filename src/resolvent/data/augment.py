"""Random augmentation of training images per epoch: shifted crop and mirror, as in the robustness study (CIFAR-10).

The random numbers of a sample depend only on (seed, epoch, sample), not on its batch or device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Layout = Literal["pixels", "planes"]

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants as int64, whose products wrap
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class CropFlip:
    """Pad a side x side image with zeros, crop it at a random offset, mirror it with probability one half.

    "pixels": x (b, side^2, c), one pixel per step. "planes": the same values, one colour plane after the other.

    Examples:
        >>> rv.data.CropFlip(side=8, pad=1).pad
        1
    """

    side: int = 32
    pad: int = 4
    layout: Layout = "pixels"

    def __call__(self, x: Tensor, index: Tensor, seed: int) -> Tensor:
        """x (b, side^2, c) of the samples `index` (b,); `seed` includes the epoch."""
        top, left, mirror = self.choices(index, seed)
        image = F.pad(self._image(x), (0, 0, self.pad, self.pad, self.pad, self.pad))  # (b, side + 2 pad, .., c)
        along = torch.arange(self.side, device=x.device)
        rows = top[:, None] + along  # (b, side)
        across = torch.where(mirror[:, None], self.side - 1 - along, along)
        columns = left[:, None] + across
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        return self._sequence(image[batch, rows[:, :, None], columns[:, None, :]])

    def choices(self, index: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Top and left edge of the crop, 0 to 2 pad, and whether it is mirrored: (b,) each."""
        bits = hash_index(index, seed)
        places = 2 * self.pad + 1
        top = (bits & 0xFFFFF) * places >> 20
        left = (bits >> 20 & 0xFFFFF) * places >> 20
        return top, left, (bits >> 40 & 1).bool()

    def _image(self, x: Tensor) -> Tensor:
        b, _, c = x.shape
        if self.layout == "planes":
            return x.reshape(b, c, self.side, self.side).permute(0, 2, 3, 1)
        return x.reshape(b, self.side, self.side, c)

    def _sequence(self, image: Tensor) -> Tensor:
        b, _, _, c = image.shape
        if self.layout == "planes":
            image = image.permute(0, 3, 1, 2)
        return image.reshape(b, self.side**2, c)


def hash_index(index: Tensor, seed: int) -> Tensor:
    """64 bits for each number of `index` (int64): `order.mixed` of index and seed, on the device of the index."""
    return _mix(_mix(index) + (seed - 2**64 if seed >= 2**63 else seed))


def _mix(z: Tensor) -> Tensor:
    z = z + _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """Logical right shift (torch's own is arithmetic)."""
    return (z >> by) & ((1 << (64 - by)) - 1)
