"""Words and word pieces: lower-cased text split like BERT's uncased tokeniser, with any vocabulary.

`split_words` and `Pieces.encode` follow the published rules (spaces and punctuation separate; accents are stripped; the
longest known piece from the left, pieces inside a word marked by ##), so a `vocab.txt` of bert-base-uncased gives that
tokeniser's ids. `learn_pieces` makes a vocabulary from a text itself and needs no download: whole words by
frequency, then frequent endings, then single characters, so that a word is unknown only if one of its characters is.
It differs from BERT's in which words are whole: sequences are a little shorter on the text it was learned from.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from resolvent.data.readers.text import fill_rows

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZE = 30_522  # size of bert-base-uncased
_LONGEST = 100  # characters of a word; longer ones are unknown
_ENDINGS = 4_000
_ENDING = 6  # longest learned ending


class Pieces:
    """A vocabulary with greedy longest-match splitting of words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.number = {word: i for i, word in enumerate(words)}
        missing = [word for word in SPECIAL[:4] if word not in self.number]
        if missing:
            raise ValueError(f"wordpiece: expected a vocabulary with {', '.join(missing)}, one entry a line.")
        self._word = lru_cache(maxsize=1 << 18)(self._cut)

    def __len__(self) -> int:
        return len(self.number)

    def encode(self, text: str, length: int) -> list[int]:
        """[CLS], at most length - 2 pieces, [SEP]."""
        found: list[int] = []
        for word in split_words(text):
            found += self._word(word)
            if len(found) >= length - 2:
                break
        return [self.number["[CLS]"], *found[: length - 2], self.number["[SEP]"]]

    def _cut(self, word: str) -> tuple[int, ...]:
        unknown = (self.number["[UNK]"],)
        if len(word) > _LONGEST:
            return unknown
        found, start = [], 0
        while start < len(word):
            mark = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if mark + word[start:end] in self.number)
            end = next(ends, None)
            if end is None:
                return unknown
            found.append(self.number[mark + word[start:end]])
            start = end
        return tuple(found)


def encode_all(texts: Sequence[str], length: int, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, length) int32, padded on the right, and lengths (n,)."""
    padding = np.full((len(texts), length), pieces.number["[PAD]"], dtype=np.int32)
    return fill_rows((pieces.encode(text, length) for text in texts), padding)


def learn_pieces(texts: Iterable[str], size: int = SIZE) -> list[str]:
    """A vocabulary of at most `size` entries from the words of `texts`."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    letters = sorted({letter for word in counts for letter in word})
    base = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    room = size - len(base)
    if room < 0:
        raise ValueError(f"wordpiece: expected a size of at least {len(base)}, for the single characters; got {size}.")
    ranked = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    whole = ranked[: max(room - _ENDINGS, room // 2)]
    rest = ranked[len(whole) :]
    return base + whole + _endings(rest, counts)[: room - len(whole)]


def _endings(words: Sequence[str], counts: Counter[str]) -> list[str]:
    found: Counter[str] = Counter()
    for word in words:
        for size in range(2, min(_ENDING, len(word) - 1) + 1):
            found[f"##{word[-size:]}"] += counts[word]
    return sorted(found, key=lambda piece: (-found[piece] * len(piece), piece))


def split_words(text: str) -> list[str]:
    """Lower-cased words and single punctuation marks."""
    if text.isascii():
        return text.lower().translate(_SPACING).split()
    kept = "".join(_clean(c) for c in text)
    bare = (c for c in unicodedata.normalize("NFD", kept.lower()) if unicodedata.category(c) != "Mn")
    return "".join(bare).translate(_SPACING).split()


class _Spacing(dict[int, str | None]):
    """For str.translate: punctuation separated by spaces, control characters dropped; filled lazily."""

    def __missing__(self, code: int) -> str | None:
        self[code] = _place(chr(code))
        return self[code]


_SPACING = _Spacing()


def _place(c: str) -> str | None:
    if c in "\t\n\r":
        return " "
    if unicodedata.category(c) in ("Cc", "Cf"):
        return None
    return f" {c} " if _punctuation(c) else c


def _punctuation(c: str) -> bool:
    ascii_mark = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return ascii_mark or unicodedata.category(c).startswith("P")


def _clean(c: str) -> str:
    """The replacement of a character: a space for any space, spaces around CJK, nothing for controls."""
    if c in "\t\n\r" or unicodedata.category(c) == "Zs":
        return " "
    if c in "\0�" or unicodedata.category(c).startswith("C"):
        return ""
    return f" {c} " if _chinese(ord(c)) else c


def _chinese(code: int) -> bool:
    ranges = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
              (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))  # fmt: skip
    return any(low <= code <= high for low, high in ranges)
