"""Handwritten digits included in the package: 1,797 images of 8 x 8 pixels, read row by row as 64 steps.

The test part of "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, UCI Machine Learning
Repository, 1998, doi:10.24432/C50P49, under CC BY 4.0. Pixel values 0 to 16 are divided by 16 here.
"""

from __future__ import annotations

import hashlib
from importlib import resources

import numpy as np
import torch

from resolvent.data.preparation.prepare import split_indices
from resolvent.data.task import Split, Task

SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"  # of the 1797 x 64 bytes of ink
FRACTIONS = (0.1, 0.25)  # validation and test


def digits(seed: int = 0) -> Task:
    """(n, 64, 1) in [0, 1], ten classes; 1,168 for training, 182 for validation, 447 for the test."""
    ink, labels = read_digits()
    whole = Split(torch.from_numpy(ink.astype(np.float32) / 16)[..., None], torch.from_numpy(labels.astype(np.int64)))
    train, validation, test = (whole.select(index) for index in split_indices(whole.y, FRACTIONS, seed))
    return Task(
        "digits", train, validation, test, length=64, channels=1, classes=10, class_names=tuple("0123456789"),
        bounds=(0.0, 1.0), licence="CC BY 4.0",
        source="E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI, doi:10.24432/C50P49",
    )  # fmt: skip


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Ink (1797, 64) uint8 from 0 to 16, and labels (1797,) uint8."""
    with resources.files("resolvent.data").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        ink, labels = arrays["images"], arrays["labels"]
    if hashlib.sha256(ink.tobytes()).hexdigest() != SHA256:
        raise ValueError("digits: the file inside the package is damaged; install resolvent again.")
    return ink, labels
