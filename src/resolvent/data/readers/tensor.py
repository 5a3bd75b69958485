"""Whatever holds numbers as a tensor: tensors, arrays, nested lists, with None where a value is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor_of(name: str, value: Any, where: str = "from_arrays", *, gaps: bool = False) -> Tensor:
    """Numbers and their type as they are; with `gaps` None, as JSON has it, becomes NaN."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{where}: expected {name} as an array, or sequences of one length; pad shorter ones and pass lengths."
        ) from None
    array = _with_gaps(array) if gaps and array.dtype == object else array
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{where}: expected numbers in {name}, got {array.dtype}; encode them as numbers first.")
    return torch.from_numpy(np.ascontiguousarray(array))


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """Floats, where the array holds numbers and None alone."""
    numbers_only = all(item is None or isinstance(item, int | float | np.number) for item in array.flat)
    return array.astype(np.float64) if numbers_only and array.ndim else array
