"""Answers that are words: classes are numbered by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def number_words(answers: Mapping[str, Any], known: Sequence[str] = ()) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arrays of words as numbers, and the names: in the order of `known`, or sorted over all arrays.

    Arrays of numbers come back as they are, with the names that are known.
    """
    words = {key: array for key, value in answers.items() if (array := words_of(value)) is not None}
    if not words:
        return dict(answers), tuple(known)
    if len(words) < len(answers):
        raise ValueError("data: expected words or numbers in every y, got some of each; write all of them one way.")
    found = sorted({str(word) for array in words.values() for word in array.flat})
    new = [name for name in found if known and name not in known]
    if new:
        raise ValueError(f"data: expected one of the class_names {', '.join(known)} in y, got {new[0]!r}.")
    names = tuple(known) or tuple(found)
    number = {name: i for i, name in enumerate(names)}
    return {key: np.array([number[str(word)] for word in array.flat]).reshape(array.shape)
            for key, array in words.items()}, names  # fmt: skip


def words_of(value: Any) -> np.ndarray | None:
    """An array of text; None when it is something else."""
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind == "S":
        return np.char.decode(value, "utf-8")
    words = value.dtype.kind == "U" or (value.dtype.kind == "O" and all(isinstance(word, str) for word in value.flat))
    return value if words and value.size else None
