"""Pathfinder: are two discs at the ends of the same snake of dashes? 32 x 32 pixels, or 128 x 128 (Path-X).

Generated here by the published rules and settings (D. Linsley et al. 2018, J. Kim et al. 2020; settings of the Long
Range Arena): the original has no seed, so the arena's own images cannot be regenerated. Ours are drawn by different
code, so their grey values differ in detail. If the arena's files are in the data folder
(lra_release/lra_release/pathfinder32/curv_contour_length_14/..), `official=True` reads those.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from resolvent.data.cache import Arrays, load_cached
from resolvent.data.counter import Counter
from resolvent.data.pathfinder.files import read_pictures
from resolvent.data.pathfinder.render import render
from resolvent.data.pathfinder.shape import Shape, shape32, shape128
from resolvent.data.preparation.prepare import PARTS
from resolvent.data.task import Task
from resolvent.data.tasks.official import Counts, Part, Splits, counts, name_parts, stored_splits, three_splits

Segments = Literal[6, 9, 14]
_CHUNK = {32: 4096, 128: 512}  # images generated at once; does not affect their content


def pathfinder(
    *, segments: Segments = 14, samples: Counts = (160_000, 20_000, 20_000), official: bool = False,
    normalise: bool = False, seed: int = 0, packed: bool | None = None,
) -> Task:  # fmt: skip
    """Pathfinder at 32 x 32: (n, 1024, 1) in [0, 1], connected or not; `segments` 14 is the hardest, then 9 and 6.

    normalise   (x - 0.5) / 0.5, in [-1, 1]: as in the loader of S4, also used by S5 and PTD
    """
    return _task("pathfinder", shape32(segments), samples, official, normalise, seed, packed)


def pathx(
    *, segments: Segments = 14, samples: Counts = (160_000, 20_000, 20_000), official: bool = False,
    normalise: bool = False, seed: int = 0, packed: bool | None = None,
) -> Task:  # fmt: skip
    """Pathfinder at 128 x 128, Path-X: (n, 16384, 1) in [0, 1], connected or not. Packed if large."""
    return _task("pathx", shape128(segments), samples, official, normalise, seed, packed)


def pictures(shape: Shape, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`count` images (count, side, side) uint8 and labels (count,), in the order of their indices."""
    from resolvent.data.pathfinder.snakes import grow  # imports numba, which is slow

    images = np.zeros((count, shape.side, shape.side), dtype=np.uint8)
    labels = np.zeros(count, dtype=np.uint8)
    done = first = 0
    with Counter(f"drawing {count:,} pictures", count) as counter:
        while done < count:
            chunk = min(_CHUNK[shape.side], count - done + 8)
            grown = grow(shape, seed, first, chunk)
            room = min(count - done, len(grown.label))
            images[done : done + room] = render(shape, grown)[:room]
            labels[done : done + room] = grown.label[:room]
            done, first = done + room, first + chunk
            counter.update(room)
    return images, labels


def _task(
    name: str, shape: Shape, samples: Counts, official: bool, normalise: bool, seed: int, packed: bool | None
) -> Task:
    if shape.segments not in (6, 9, 14):
        raise ValueError(f"{name}: expected segments 6, 9 or 14, got {shape.segments}.")
    made = counts(name, samples)
    if official:
        splits = _official(shape, normalise, seed, packed)
    else:
        splits = _generate_splits(name, shape, made, normalise, seed, packed)
    note = "the Long Range Arena's own pictures" if official else f"generated from seed {seed} by the published rules"
    return Task(
        name,
        *splits,
        length=shape.side**2,
        channels=1,
        classes=2,
        class_names=("apart", "connected"),
        bounds=(-1.0, 1.0) if normalise else (0.0, 1.0),
        licence="Apache-2.0 (Long Range Arena)" if official else "generated",
        source="D. Linsley et al. (2018) and J. Kim et al. (2020), Pathfinder; settings of Y. Tay et al. (2021)",
        notes=(f"{shape.segments} dashes a snake; {note}", *(["normalised to [-1, 1]"] if normalise else [])),
    )


def _generate_splits(
    name: str, shape: Shape, samples: tuple[int, int, int], normalise: bool, seed: int, packed: bool | None
) -> Splits:
    def build() -> Arrays:
        images, labels = pictures(shape, sum(samples), seed)
        return name_parts(samples, x=images.reshape(len(images), -1, 1), y=labels)

    held = load_cached(f"{name}-{shape.segments}-{'-'.join(map(str, samples))}-seed{seed}", build)
    train, validation, test = (Part(held[f"{part}_x"], held[f"{part}_y"], centred=normalise) for part in PARTS)
    return stored_splits(train, validation, test, packed)


def _official(shape: Shape, normalise: bool, seed: int, packed: bool | None) -> Splits:
    """80 / 10 / 10 of the arena's images, by our seed: the arena's own split is not recorded."""
    held = load_cached(
        f"pathfinder{shape.side}-{shape.segments}-lra", lambda: read_pictures(shape.side, shape.segments)
    )
    cut = len(held["y"]) - len(held["y"]) // 10
    rest, test = (Part(held["x"][at], held["y"][at], centred=normalise) for at in (slice(cut), slice(cut, None)))
    return three_splits(rest, test, 1 / 9, seed, packed)
