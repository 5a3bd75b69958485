"""Your own data as a Task: shapes, channels and classes inferred, the split seeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.preparation.prepare import Own, Preparation, prepare, split_indices
from resolvent.data.preparation.preprocess import check_lengths
from resolvent.data.readers.values import number_words, tensor_of
from resolvent.data.task import Task

__all__ = ["from_arrays", "own", "split_indices"]


def from_arrays(
    x: Any,
    y: Any,
    lengths: Any = None,
    *,
    groups: Any = None,
    name: str = "arrays",
    class_names: Sequence[str] = (),
    **options: Any,
) -> Task:
    """x (n, l, c) numbers or (n, l) real, or (n, l) integer tokens; y (n,) classes, or real targets; lengths (n,).

    Classes are numbers from 0, or words, which are numbered in the order of `class_names` if given, else sorted.

    Real input is converted to float32 after scaling, and input (n, l) gets a channel axis. The options are those
    of `prepare.Preparation`: fractions of validation and test, seed, bounds, missing, scale. Classes keep their
    proportions in every split. `groups` (n,), words or numbers, says which samples belong together: no group is
    in two splits.

    Examples:
        >>> task = rv.data.from_arrays(torch.randn(40, 12, 2), [0, 1] * 20, scale="standard")
        >>> task.length, task.channels, task.classes
        (12, 2, 2)
    """
    how = Preparation.of("from_arrays", **options)
    answers, names = number_words({"y": y}, class_names)
    samples = own(x, answers["y"], lengths, groups)
    return prepare({"all": samples}, how, name=name, source="from_arrays", class_names=names)


def own(x: Any, y: Any, lengths: Any = None, groups: Any = None) -> Own:
    """Checked samples; missing values are still NaN."""
    inputs, answers = _inputs(x), check_answers(y)
    if len(inputs) != len(answers):
        counts = f"{len(inputs)} inputs, {len(answers)} labels"
        raise ValueError(f"from_arrays: expected as many labels as inputs, got {counts}.")
    steps = None if lengths is None else check_lengths(lengths, inputs, "from_arrays")
    return Own(inputs, answers, steps, check_groups(groups, len(inputs)))


def check_groups(groups: Any, samples: int) -> tuple[str, ...]:
    if groups is None:
        return ()
    found = np.asarray(groups)
    if found.shape != (samples,):
        raise ValueError(f"from_arrays: expected groups of shape ({samples},), one a sample, got {found.shape}.")
    return tuple(str(name) for name in found.tolist())


def _inputs(x: Any) -> Tensor:
    value = tensor_of("x", x, gaps=True)
    if value.dim() not in (2, 3):
        got = f"{tuple(value.shape)} {value.dtype}"
        raise ValueError(f"from_arrays: expected x of shape (n, l, c), or (n, l) real or tokens, got {got}.")
    if value.dim() == 3 and not value.is_floating_point():
        value = value.double()  # whole numbers of a sensor: tokens have no channels
    if 0 in value.shape:
        raise ValueError(f"from_arrays: expected at least one sample, step and channel, got x {tuple(value.shape)}.")
    if not value.is_floating_point():
        return value.long()
    value = value if value.dtype == torch.float64 else value.float()
    return value if value.dim() == 3 else value[..., None]


def check_answers(y: Any) -> Tensor:
    value = tensor_of("y", y)
    if value.dim() < 1:
        raise ValueError("from_arrays: expected y of shape (n,) or (n, ...), got one number.")
    if not value.is_floating_point():
        if value.dim() > 1:
            raise ValueError(
                f"from_arrays: expected one class a sample, y of shape (n,), got {tuple(value.shape)}; targets "
                "that are no classes are given as real numbers."
            )
        return value.long()
    if not bool(value.isfinite().all()):
        raise ValueError("from_arrays: y holds missing or infinite values; drop those samples first.")
    return value.float()
