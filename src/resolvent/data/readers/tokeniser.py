"""How text became tokens, stored with a run so that new text is encoded the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from resolvent.data.readers.text import encode_bytes, encode_characters
from resolvent.models.settings import Settings


@dataclass(frozen=True)
class Tokeniser(Settings):
    """`words` are numbered in their order: characters after padding, unknown and end; words and pieces from 0.

    bytes       padding 0, byte b as b + 1
    characters  known characters, then the end
    words       separated by spaces; unknown words are refused
    pieces      of lower-cased words, [CLS] .. [SEP]
    """

    kind: Literal["bytes", "characters", "words", "pieces"] = "bytes"
    words: tuple[str, ...] = ()

    def encode(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (n, length) and lengths (n,); longer texts are truncated."""
        if self.kind == "bytes":
            return encode_bytes([text.encode() for text in texts], length)
        if self.kind == "characters":
            return encode_characters(texts, length, {c: i for i, c in enumerate(self.words, start=3)})
        if self.kind == "pieces":
            from resolvent.data.readers.wordpiece import Pieces, encode_all

            return encode_all(list(texts), length, Pieces(self.words))
        return self._words(texts, length)

    def _words(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        number = {word: i for i, word in enumerate(self.words)}
        tokens, lengths = np.zeros((len(texts), length), dtype=np.int64), np.zeros(len(texts), dtype=np.int64)
        for i, text in enumerate(texts):
            found = [word for word in text.split() if word not in ("(", ")")][:length]
            wrong = [word for word in found if word not in number]
            if wrong or not found:
                known = ", ".join(self.words[:20])
                raise ValueError(f"data: text {i}: expected words among {known}, got {(wrong or ['none'])[0]!r}.")
            tokens[i, : len(found)] = [number[word] for word in found]
            lengths[i] = len(found)
        return tokens, lengths
