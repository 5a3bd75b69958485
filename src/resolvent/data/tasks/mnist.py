"""MNIST read pixel by pixel: 784 steps of one grey value, row by row or in one fixed random order."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np

from resolvent.data.cache import Arrays, load_cached
from resolvent.data.download import Remote, fetch
from resolvent.data.order import shuffle
from resolvent.data.task import Task
from resolvent.data.tasks.official import Part, three_splits

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
_ORDER = 784  # seed of the fixed order of permuted MNIST


def mnist(*, validation: float = 0.1, seed: int = 0, packed: bool | None = None) -> Task:
    """Sequential MNIST: (n, 784, 1) in [0, 1], ten digits; 60,000 to train and validate on, 10,000 to test."""
    return _task("mnist", None, validation, seed, packed)


def permuted_mnist(
    *, permutation: int = _ORDER, validation: float = 0.1, seed: int = 0, packed: bool | None = None
) -> Task:
    """MNIST with its 784 pixels in one fixed random order, the same for every sample.

    `permutation` is the seed of that order. Papers do not share a common order.
    """
    return _task("permuted-mnist", shuffle(784, permutation), validation, seed, packed)


def read_mnist() -> Arrays:
    """train_x (60000, 784), train_y, test_x (10000, 784), test_y as bytes, mapped from the cache."""
    return load_cached("mnist", _decode)


def read_idx(data: bytes, where: str = "idx") -> np.ndarray:
    """An array of bytes in the idx format: two zero bytes, type 8, number of axes, big-endian sizes, values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{where}: expected an idx file of unsigned bytes (00 00 08 ..), got {data[:4].hex(' ')!r}.")
    axes = data[3]
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    start = 4 + 4 * axes
    if len(data) - start != int(np.prod(shape)):
        raise ValueError(f"{where}: expected {int(np.prod(shape))} values of shape {shape}, got {len(data) - start}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _decode() -> Arrays:
    held = {}
    for name, checksum in CHECKSUMS.items():
        path = fetch(Remote(f"mnist/{name}", checksum, tuple(mirror + name for mirror in MIRRORS)))
        with gzip.open(path) as file:
            held[name] = read_idx(file.read(), str(path))
    train_x, train_y, test_x, test_y = held.values()
    flat: dict[str, Any] = {"train_x": train_x.reshape(-1, 784), "test_x": test_x.reshape(-1, 784)}
    return flat | {"train_y": train_y, "test_y": test_y}


def _task(name: str, order: np.ndarray | None, validation: float, seed: int, packed: bool | None) -> Task:
    held = read_mnist()
    x = {part: held[f"{part}_x"] if order is None else held[f"{part}_x"][:, order] for part in ("train", "test")}
    train, test = (Part(x[part][..., None], held[f"{part}_y"]) for part in ("train", "test"))
    return Task(
        name, *three_splits(train, test, validation, seed, packed), length=784, channels=1, classes=10,
        class_names=tuple("0123456789"), bounds=(0.0, 1.0), licence="CC BY-SA 3.0",
        source="Y. LeCun, C. Cortes, C. Burges, the MNIST database of handwritten digits",
    )  # fmt: skip
