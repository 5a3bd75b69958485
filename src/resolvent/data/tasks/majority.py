"""Majority: are there more ones than zeros? The generalisation study's synthetic task."""

from __future__ import annotations

import numpy as np
import torch

from resolvent.data.order import uniform
from resolvent.data.task import Split, Task
from resolvent.data.tasks.official import Counts, counts


def majority(*, length: int = 100, samples: Counts = 1000, noise: float = 0.25, seed: int = 0) -> Task:
    """Binary sequences of `length` tokens, labelled 1 when more than half of them are ones.

    The number of ones is uniform from 0 to `length`, their positions are random. In the training part only, after
    labelling, each one becomes a zero with probability `noise`: 0.25 in the study's code, 0.10 in its text.
    """
    if length < 1 or not 0 <= noise <= 1:
        raise ValueError(f"majority: expected length from 1 on and noise from 0 to 1, got {length} and {noise}.")
    train, validation, test = (
        _split(length, count, 0.0 if part else noise, (seed, part))
        for part, count in enumerate(counts("majority", samples))
    )
    return Task(
        "majority",
        train,
        validation,
        test,
        length=length,
        vocabulary=2,
        classes=2,
        class_names=("fewer ones", "more ones"),
        licence="generated",
        source="the rule of the study of generalisation of selective state-space models",
        notes=(f"generated from seed {seed}; a one of the training part is a zero with probability {noise}",),
    )


def _split(length: int, count: int, noise: float, seed: tuple[int, int]) -> Split:
    ones = (uniform((count,), *seed, 0) * (length + 1)).astype(np.int64)
    order = uniform((count, length), *seed, 1).argsort(axis=1)  # a random order of the steps of each sequence
    x = order < ones[:, None]
    x &= uniform((count, length), *seed, 2) >= noise
    return Split(torch.from_numpy(x.astype(np.int64)), torch.from_numpy((2 * ones > length).astype(np.int64)))
