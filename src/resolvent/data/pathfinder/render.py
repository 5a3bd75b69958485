"""Snakes and discs as grey images: drawn at twice the size, then reduced with a Lanczos filter."""

from __future__ import annotations

import math

import numpy as np

from resolvent.data.pathfinder.shape import Grown, Shape

ENLARGED = 2
_LOBES = 3


def render(shape: Shape, grown: Grown) -> np.ndarray:
    """(n, side, side) uint8; dashes at the shape's contrast, discs at full brightness."""
    count, side = len(grown.label), ENLARGED * shape.side
    lines = np.zeros((count, side, side), dtype=np.float32)
    for k in range(grown.dashes.shape[1]):
        _stroke(lines, grown.dashes[:, k], max(shape.thickness * ENLARGED / 2, 0.5), ENLARGED * shape.paddle)
    discs = np.zeros_like(lines)
    for k in range(2):
        spot = np.concatenate([grown.discs[:, k]] * 2, 1)
        _stroke(discs, spot, shape.marker * ENLARGED, 0)
    bright = np.maximum(shape.contrast * reduce(lines), reduce(discs))
    return np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8)


def _stroke(canvas: np.ndarray, dash: np.ndarray, radius: float, length: float) -> None:
    """Draw the dash, if there is one, on the large image within `radius`, with an edge one pixel wide in grey."""
    rows = np.nonzero(np.isfinite(dash[:, 0]))[0]
    large = dash[rows] * ENLARGED + (ENLARGED - 1) / 2  # centres of pixels on centres of blocks of pixels
    cells, distance = _around(large, math.ceil(length / 2 + radius) + 1, canvas.shape[1])
    light = np.clip(radius + 0.5 - distance, 0, 1).astype(np.float32)
    place = (rows[:, None], cells[..., 0], cells[..., 1])
    canvas[place] = np.maximum(canvas[place], light)


def _around(dash: np.ndarray, reach: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels near each dash: positions (n, k, 2), clipped to the image, and their distances from it (n, k)."""
    line = np.arange(-reach, reach + 1)
    patch = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    cells = np.clip(np.rint((dash[:, :2] + dash[:, 2:]) / 2).astype(np.int64)[:, None] + patch, 0, side - 1)
    start, along = dash[:, None, :2], (dash[:, 2:] - dash[:, :2])[:, None]
    offset = cells - start
    share = np.clip((offset * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9), 0, 1)[..., None]
    return cells, np.sqrt(((offset - share * along) ** 2).sum(-1))


def reduce(images: np.ndarray) -> np.ndarray:
    """(n, 2 s, 2 s) -> (n, s, s)."""
    filter_ = lanczos(images.shape[1] // ENLARGED).astype(np.float32)
    return filter_ @ images @ filter_.T


def lanczos(size: int) -> np.ndarray:
    """The rows of weights that reduce 2 size samples to size: sinc(x) sinc(x / 3) over three lobes, each sum 1."""
    fine = (np.arange(ENLARGED * size) + 0.5) / ENLARGED
    x = fine[None] - (np.arange(size)[:, None] + 0.5)  # in units of the small pixels
    weight = np.where(np.abs(x) < _LOBES, np.sinc(x) * np.sinc(x / _LOBES), 0.0)
    return weight / weight.sum(1, keepdims=True)
