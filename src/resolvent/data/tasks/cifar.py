"""CIFAR-10 read pixel by pixel: 1,024 steps of three colours or of one grey value.

Layouts of a colour image: "pixels", step t is pixel t with its red, green and blue (what the papers describe), and
"planes", where the planes are cut into triples without turning the axes: step t then holds three neighbours of one
plane, first all red, then green, then blue (what the robustness study's released code feeds its models).
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch

from resolvent.data.augment import CropFlip, Layout
from resolvent.data.cache import Arrays, load_cached
from resolvent.data.download import Remote, fetch_members
from resolvent.data.task import Task
from resolvent.data.tasks.official import Part, Splits, three_splits

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = Remote("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", (URL,))
CHECKSUMS = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}
_PARTS = ("train", "test")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COLOUR_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # mean and deviation, as usually quoted
GREY_STATISTICS = ((122.6 / 255,), (61.0 / 255,))


def cifar10(
    *, layout: Layout = "pixels", augment: bool = False, normalise: bool = False, validation: float = 0.1,
    seed: int = 0, packed: bool | None = None,
) -> Task:  # fmt: skip
    """Sequential CIFAR-10 in colour: (n, 1024, 3) in [0, 1], ten classes; 50,000 and 10,000 images.

    augment     training images are padded by 4, cropped and mirrored at random in each epoch
    normalise   subtract the channel means and divide by the deviations; the task then has no bounds
    """
    if layout not in get_args(Layout):
        raise ValueError(f"cifar10: expected layout 'pixels' or 'planes', got {layout!r}.")
    held = read_cifar()
    parts = [Part(sequences(held[f"{part}_x"], layout), held[f"{part}_y"]) for part in _PARTS]
    splits = three_splits(parts[0], parts[1], validation, seed, False if normalise else packed)
    if normalise and layout == "planes":
        raise ValueError(
            "cifar10: expected layout 'pixels' with normalise, since a step of 'planes' mixes no channels."
        )
    return _task(
        "cifar10", splits, 3, COLOUR_STATISTICS if normalise else None, CropFlip(layout=layout) if augment else None
    )


def cifar10_grey(
    *, augment: bool = False, normalise: bool = False, validation: float = 0.1, seed: int = 0,
    packed: bool | None = None,
) -> Task:  # fmt: skip
    """Sequential CIFAR-10 in grey, the Long Range Arena's Image: (n, 1024, 1) in [0, 1], ten classes."""
    held = load_cached("cifar10-grey", lambda: {k: grey(v) if k[-1] == "x" else v for k, v in read_cifar().items()})
    parts = [Part(held[f"{part}_x"], held[f"{part}_y"]) for part in _PARTS]
    splits = three_splits(parts[0], parts[1], validation, seed, False if normalise else packed)
    return _task("cifar10-grey", splits, 1, GREY_STATISTICS if normalise else None, CropFlip() if augment else None)


def read_cifar() -> Arrays:
    """train_x (50000, 1024, 3) as bytes, pixel by pixel, train_y, test_x, test_y, mapped from the cache."""
    return load_cached("cifar10", _decode)


def _decode() -> Arrays:
    files = [Remote(f"cifar-10-batches-bin/{name}", checksum) for name, checksum in CHECKSUMS.items()]
    rows = [np.fromfile(path, np.uint8).reshape(-1, 3073) for path in fetch_members(files, ARCHIVE)]
    held: Arrays = {}
    for part, found in (("train", np.concatenate(rows[:5])), ("test", rows[5])):
        held[f"{part}_x"] = found[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        held[f"{part}_y"] = found[:, 0]
    return held


def sequences(images: np.ndarray, layout: Layout) -> np.ndarray:
    """(n, 1024, 3) pixel by pixel -> the same numbers in that layout."""
    return images if layout == "pixels" else images.transpose(0, 2, 1).reshape(-1, 1024, 3)


def grey(images: np.ndarray) -> np.ndarray:
    """Luma of ITU-R 601 in integers: (n, 1024, 3) bytes -> (n, 1024, 1) bytes.

    0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded to nearest.
    """
    r, g, b = (images[..., i : i + 1].astype(np.uint32) for i in range(3))
    return ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16).astype(np.uint8)


def _task(
    name: str,
    splits: Splits,
    channels: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None,
    augment: CropFlip | None,
) -> Task:
    if statistics is not None:
        mean, deviation = (torch.tensor(values) for values in statistics)
        for split in splits:
            split.x.sub_(mean).div_(deviation)
    return Task(
        name,
        *splits,
        length=1024,
        channels=channels,
        classes=10,
        class_names=CLASSES,
        bounds=(0.0, 1.0) if statistics is None else None,
        licence="none stated by its authors",
        source="A. Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        augment=augment,
        notes=() if statistics is None else (f"normalised by mean {statistics[0]} and deviation {statistics[1]}",),
    )
