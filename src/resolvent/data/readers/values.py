"""Arrays of a file as tensors: numbers, and words by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def number_words(answers: Mapping[str, Any], known: Sequence[str] = ()) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arrays of words as numbers, and the names: in the order of `known`, or sorted over all arrays.

    Arrays of numbers are returned unchanged, with the known names.
    """
    words = {key: array for key, value in answers.items() if (array := words_of(value)) is not None}
    if not words:
        return dict(answers), tuple(known)
    if len(words) < len(answers):
        raise ValueError("data: expected either words or numbers in y, got both; use one of them throughout.")
    found = sorted({str(word) for array in words.values() for word in array.flat})
    new = [name for name in found if known and name not in known]
    if new:
        raise ValueError(f"data: expected one of the class_names {', '.join(known)} in y, got {new[0]!r}.")
    names = tuple(known) or tuple(found)
    number = {name: i for i, name in enumerate(names)}
    return {key: np.array([number[str(word)] for word in array.flat]).reshape(array.shape)
            for key, array in words.items()}, names  # fmt: skip


def words_of(value: Any) -> np.ndarray | None:
    """The value as an array of text; None if it is not text."""
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind == "S":
        return np.char.decode(value, "utf-8")
    words = value.dtype.kind == "U" or (value.dtype.kind == "O" and all(isinstance(word, str) for word in value.flat))
    return value if words and value.size else None


def tensor_of(name: str, value: Any, where: str = "from_arrays", *, gaps: bool = False) -> Tensor:
    """A tensor with unchanged values and type; with `gaps`, None (as in JSON) becomes NaN."""
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
    """Floats, if the array holds only numbers and None."""
    numbers_only = all(item is None or isinstance(item, int | float | np.number) for item in array.flat)
    return array.astype(np.float64) if numbers_only and array.ndim else array
