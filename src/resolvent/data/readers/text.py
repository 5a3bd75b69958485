"""Text as numbers without a learned tokeniser: its bytes, or its frequent characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

PAD = 0
BYTES = 257  # padding 0, byte b as b + 1
UNKNOWN, END = 1, 2  # tokens of a character alphabet


def encode_bytes(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, length) int16 and lengths (n,) int32; longer texts are truncated, empty ones are one padding token."""
    lengths = np.array([min(len(text), length) for text in texts], dtype=np.int32)
    tokens = np.zeros((len(texts), length), dtype=np.int16)
    for row, text, size in zip(tokens, texts, lengths, strict=True):
        row[:size] = np.frombuffer(text, np.uint8, count=size)
        row[:size] += 1
    return tokens, np.maximum(lengths, 1)


def alphabet(texts: Iterable[str], fewest: int = 1) -> dict[str, int]:
    """Characters that occur at least `fewest` times, most frequent first, numbered after padding, unknown, end."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    kept = sorted((c for c in counts if counts[c] >= fewest), key=lambda c: (-counts[c], c))
    return {c: number for number, c in enumerate(kept, start=END + 1)}


def encode_characters(texts: Sequence[str], length: int, known: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, length) int16 and lengths (n,): at most length - 1 characters, then the end."""
    rows = ([*(known.get(c, UNKNOWN) for c in text[: length - 1]), END] for text in texts)
    return fill_rows(rows, np.zeros((len(texts), length), dtype=np.int16))


def fill_rows(rows: Iterable[Sequence[int]], tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The array (n, length) of padding with a row for each text, and lengths (n,) int32."""
    lengths = np.zeros(len(tokens), dtype=np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        lengths[i] = len(row)
    return tokens, lengths
