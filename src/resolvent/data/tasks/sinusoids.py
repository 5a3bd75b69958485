"""Sinusoids: regress frequency and amplitude of a wave. The synthetic task of the perturb-then-diagonalise study.

A diagonal model of state size N that starts from HiPPO-LegS has a spike of its transfer function near the frequency
N^2 / pi (80.97 for N = 16), which the exact system lacks: a wave there is amplified and the regression fails.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from resolvent.data.order import uniform
from resolvent.data.task import Split, Task
from resolvent.data.tasks.official import Counts, counts

Range = tuple[float, float]


def sinusoids(
    *,
    length: int = 1000,
    duration: float = 1.0,
    frequencies: Range = (1.0, 80.0),
    test_frequencies: Range | None = None,
    amplitudes: Range = (0.5, 1.5),
    samples: Counts = (4000, 500, 500),
    noise: float = 0.0,
    seed: int = 0,
) -> Task:
    """u(t) = a sin(s t + phi) on [0, duration], the targets are (s, a), divided by the ends of their ranges.

    s (radians per unit of time), a and phi are uniform; `test_frequencies` gives the test part another range.
    `noise` is the standard deviation of white noise on every value.
    """
    _check(length, duration, frequencies, test_frequencies or frequencies, amplitudes)
    t = np.linspace(0.0, duration, length, endpoint=False)
    splits = []
    for part, count in enumerate(counts("sinusoids", samples)):
        s, a, phase = uniform((3, count), seed, part, 0)
        s = _spread(s, frequencies if part < 2 or test_frequencies is None else test_frequencies)
        a = _spread(a, amplitudes)
        u = a[:, None] * np.sin(s[:, None] * t + 2 * math.pi * phase[:, None])
        u += noise * _normal((count, length), seed, part)
        splits.append(Split(_float(u)[..., None], _float(np.stack([s / frequencies[1], a / amplitudes[1]], 1))))
    return Task(
        "sinusoids",
        splits[0],
        splits[1],
        splits[2],
        length=length,
        channels=1,
        licence="generated",
        source="the task described in the study of perturb-then-diagonalise state-space models",
        notes=(
            f"generated from seed {seed}; targets are s / {frequencies[1]:g} and a / {amplitudes[1]:g}",
            f"frequencies {frequencies}" + (f", in the test {test_frequencies}" if test_frequencies else ""),
        ),
    )


def _spread(u: np.ndarray, ends: Range) -> np.ndarray:
    return ends[0] + (ends[1] - ends[0]) * u


def _normal(shape: tuple[int, int], seed: int, part: int) -> np.ndarray:
    """Standard normal numbers by Box and Muller."""
    u, v = uniform(shape, seed, part, 1), uniform(shape, seed, part, 2)
    return np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * v)


def _float(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _check(length: int, duration: float, *ranges: Range) -> None:
    if length < 2 or duration <= 0:
        raise ValueError(f"sinusoids: expected length from 2 on and a positive duration, got {length} and {duration}.")
    for low, high in ranges:
        if not 0 <= low <= high or high <= 0:
            raise ValueError(f"sinusoids: expected ranges (low, high) with 0 <= low <= high, got {(low, high)}.")
    fastest = max(high for _, high in ranges[:2])
    if fastest * duration / length >= math.pi:
        raise ValueError(
            f"sinusoids: frequency {fastest:g} has under two samples a period; take at least "
            f"{math.ceil(fastest * duration / math.pi) + 1} steps, or lower frequencies."
        )
