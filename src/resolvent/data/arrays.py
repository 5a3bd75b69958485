"""One's own data as a Task: shapes, channels and classes inferred, the split seeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.order import shuffled
from resolvent.data.task import Bounds, Split, Task


def from_arrays(
    x: Any,
    y: Any,
    lengths: Any = None,
    *,
    fractions: Sequence[float] = (0.1, 0.2),
    seed: int = 0,
    bounds: Bounds | None = None,
    name: str = "arrays",
) -> Task:
    """x (n, l, c) or (n, l) real, or (n, l) whole-number tokens; y (n,) classes, or real targets; lengths (n,).

    `fractions` are the shares of validation and test; the rest is for training. Classes keep their proportions in
    every split. Real input becomes float32, and one of shape (n, l) gets its channel axis.
    """
    inputs, answers = _inputs(x), _answers(y)
    steps = None if lengths is None else _tensor("lengths", lengths).long()
    if len(inputs) != len(answers) or (steps is not None and len(steps) != len(inputs)):
        counts = f"{len(inputs)} inputs, {len(answers)} answers" + ("" if steps is None else f", {len(steps)} lengths")
        raise ValueError(f"from_arrays: expected as many answers (and lengths) as inputs, got {counts}.")
    whole = Split(inputs, answers, steps)
    train, validation, test = (whole.select(index) for index in split_indices(answers, fractions, seed))
    real = inputs.is_floating_point()
    return Task(
        name,
        train,
        validation,
        test,
        length=inputs.shape[1],
        channels=inputs.shape[2] if real else None,
        vocabulary=None if real else int(inputs.max()) + 1,
        classes=None if answers.is_floating_point() else int(answers.max()) + 1,
        bounds=bounds,
        licence="the user's own",
        source="from_arrays",
    )


def split_indices(y: Tensor, fractions: Sequence[float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample ids of train, validation and test. Whole-number y is split class by class."""
    validation, test = _checked(fractions)
    order = torch.from_numpy(shuffled(len(y), seed))
    labels = y.new_zeros(len(y), dtype=torch.long) if y.is_floating_point() else y
    share = torch.zeros(len(y), dtype=torch.float64)
    for label in labels.unique():
        members = order[labels[order] == label]
        share[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    share = share[order]
    return order[share >= validation + test], order[(share >= test) & (share < validation + test)], order[share < test]


def _checked(fractions: Sequence[float]) -> tuple[float, float]:
    if len(fractions) != 2 or min(fractions) < 0 or sum(fractions) >= 1:
        raise ValueError(
            f"from_arrays: expected the shares of validation and test, below 1 together, got {tuple(fractions)}."
        )
    return fractions[0], fractions[1]


def _inputs(x: Any) -> Tensor:
    value = _tensor("x", x)
    if value.dim() not in (2, 3) or (value.dim() == 3 and not value.is_floating_point()):
        got = f"{tuple(value.shape)} {value.dtype}"
        raise ValueError(f"from_arrays: expected x of shape (n, l, c), or (n, l) real or tokens, got {got}.")
    if 0 in value.shape:
        raise ValueError(f"from_arrays: expected at least one sample, step and channel, got x {tuple(value.shape)}.")
    if not value.is_floating_point():
        return value.long()
    if not bool(value.isfinite().all()):
        missing = int((~value.isfinite()).sum())
        raise ValueError(f"from_arrays: x holds {missing} missing or infinite values; fill or drop them first.")
    value = value.float()
    return value if value.dim() == 3 else value[..., None]


def _answers(y: Any) -> Tensor:
    value = _tensor("y", y)
    if value.dim() < 1:
        raise ValueError("from_arrays: expected y of shape (n,) or (n, ...), got one number.")
    return value.float() if value.is_floating_point() else value.long()


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"from_arrays: expected numbers in {name}, got {array.dtype}; encode them as numbers first.")
    return torch.from_numpy(np.ascontiguousarray(array))
