"""Forecasting: windows of the past and the values that follow them.

A series (t, c) gives the samples x = steps i .. i + window - 1 of all channels and y = the `horizon` next values of the
target channels, for every stride-th i. Parts are split by time: the last share of each series is the test part, the
share before it validation, and no window of an earlier part reaches into a later one, so that no target was seen in
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from resolvent.data.preparation.prepare import Own
from resolvent.usage.numbers import check_count


@dataclass(frozen=True)
class Windows:
    """window past steps, horizon steps ahead, stride between windows' starts; targets: channel indices."""

    window: int
    horizon: int = 1
    stride: int = 1
    targets: tuple[int, ...] | None = None  # None: all channels

    def __post_init__(self) -> None:
        check_count("forecast", 1, window=self.window, horizon=self.horizon, stride=self.stride)


def cut_windows(
    series: Sequence[np.ndarray], how: Windows, fractions: tuple[float, float], where: str, hint: str = ""
) -> dict[str, Own]:
    """Samples of train, validation and test from series (t, c) each; windows whose targets have gaps are left out."""
    need, found = how.window + how.horizon, {"train": [], "validation": [], "test": []}  # type: ignore[var-annotated]
    for values in series:
        steps = len(values)
        ends = [round(steps * (1 - sum(fractions))), round(steps * (1 - fractions[1])), steps]
        first = 0
        for part, end in zip(found, ends, strict=True):
            # the past may be in an earlier part, the targets may not
            start = max(0, first - how.window) if part != "train" else 0
            found[part] += windows_of(values[start:end], how)
            first = end
    short = [part for part in ("train", "test") if not found[part]]
    if short:
        longest = max(len(values) for values in series)
        raise ValueError(
            f"{where}: no window of {how.window} steps and {how.horizon} ahead ({need} together) fits into the "
            f"{short[0]} part; the longest series has {longest} steps. Make --window or --horizon smaller{hint}."
        )
    return {part: stack(rows, found["train"][0]) for part, rows in found.items()}


def windows_of(values: np.ndarray, how: Windows) -> list[tuple[np.ndarray, np.ndarray]]:
    """The past and the targets of every window in a series (t, c)."""
    targets = list(range(values.shape[1])) if how.targets is None else list(how.targets)
    rows = []
    for i in range(0, len(values) - how.window - how.horizon + 1, how.stride):
        middle = i + how.window
        answer = values[middle : middle + how.horizon, targets].reshape(-1)  # (horizon * targets,)
        if np.isfinite(answer).all():
            rows.append((values[i:middle], answer))
    return rows


def stack(rows: list[tuple[np.ndarray, np.ndarray]], like: tuple[np.ndarray, np.ndarray]) -> Own:
    """x in the type of the series: what float32 would lose of a large offset is there until channels are scaled."""
    none = [np.zeros((0, *part.shape), dtype=part.dtype) for part in like]
    x, y = [np.stack(column) for column in zip(*rows, strict=True)] if rows else none
    return Own(torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)))
