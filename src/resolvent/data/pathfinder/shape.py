"""The geometry of Pathfinder images as values, and the random numbers from which each is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from resolvent.data.order import fold, mix_bits

ROLLS = 10_000  # random numbers that an image may use before it is discarded


@dataclass(frozen=True)
class Shape:
    """Lengths in pixels. `margins`: one of them is drawn for each picture."""

    side: int
    paddle: int
    thickness: float
    margins: tuple[int, ...]
    continuity: float
    marker: float
    apart: int  # distance of the two seeds
    segments: int
    distractors: int
    contrast: float

    @property
    def few(self) -> int:
        """Number of dashes of a distractor."""
        return max(1, self.segments // 3)


def shape32(segments: int = 14) -> Shape:
    """The Long Range Arena's Pathfinder: 32 x 32."""
    return Shape(32, 2, 0.5, (1,), 1.0, 1.5, 7, segments, 20 // max(1, segments // 3), 1.5)


def shape128(segments: int = 14) -> Shape:
    """Its Path-X: 128 x 128."""
    return Shape(128, 5, 1.5, (2, 3), 1.8, 3.0, 20, segments, int(35 / (segments / 3)), 0.9)


@dataclass(frozen=True, eq=False)
class Grown:
    """Finished pictures: dashes (n, k, 4) as (y, x, y, x), NaN where there is none; discs (n, 2, 2) as (y, x).

    Dashes 0, 2, 4 .. belong to one long snake and 1, 3, 5 .. to the other; then come the distractors, `few` each.
    """

    dashes: np.ndarray
    discs: np.ndarray
    label: np.ndarray  # (n,): 1 when the discs lie on one snake


def circle(radius: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pixels (k, 2) on a circle sampled once per pixel of its circumference, and their directions (k,)."""
    turn = np.arange(0, 2 * math.pi, 1 / radius)
    cells = np.unique(np.floor(radius * np.stack([np.sin(turn), np.cos(turn)], 1)), axis=0)
    return cells, np.arctan2(cells[:, 0], cells[:, 1])


def rolls(seed: int, first: int, count: int) -> np.ndarray:
    """Random numbers in [0, 1) of images first .. first + count - 1: (count, ROLLS)."""
    with np.errstate(over="ignore"):
        key = mix_bits(mix_bits(np.arange(first, first + count, dtype=np.uint64)) + np.uint64(fold(seed)))
        bits = mix_bits(key[:, None] + np.arange(ROLLS, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95))
    return (bits >> np.uint64(11)) * 2.0**-53
