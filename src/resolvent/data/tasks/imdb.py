"""IMDb movie reviews, positive or negative: as bytes for the Long Range Arena, as words for the generalisation study.

The data folder holds either imdb/train.tsv.xz and imdb/test.tsv.xz ("label TAB text" per line) or the authors' archive.
Samples are ordered by a hash of their text, whatever their source.
"""

from __future__ import annotations

import hashlib
import lzma
import tarfile
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from resolvent.data.cache import Arrays, load_cached
from resolvent.data.download import Remote, fetch
from resolvent.data.folder import data_folder
from resolvent.data.readers.text import BYTES, END, alphabet, encode_bytes, encode_characters
from resolvent.data.readers.tokeniser import Tokeniser
from resolvent.data.readers.wordpiece import SIZE, Pieces, encode_all, learn_pieces
from resolvent.data.task import Task
from resolvent.data.tasks.official import Part, three_splits

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
ARCHIVE = Remote("aclImdb_v1.tar.gz", "md5:7c2ac02c03563afcf9b574c7e56c153a", (URL,))
Unit = Literal["bytes", "characters"]
Reviews = tuple[list[bytes], np.ndarray]
_PARTS = ("train", "test")
_EACH = 12_500  # reviews per class in each part
_FEWEST = 15  # occurrences that put a character into the alphabet


def imdb(
    *, length: int = 4096, unit: Unit = "bytes", validation: float = 0.1, seed: int = 0, packed: bool | None = None
) -> Task:
    """The Long Range Arena's Text: 25,000 reviews to train and validate on, 25,000 to test, cut at `length` bytes.

    "bytes": 257 tokens, padding 0 and byte b as b + 1. "characters": those that occur 15 times in the training
    part, after padding, unknown and end (as in S4 and its successors).
    """
    if unit not in get_args(Unit):
        raise ValueError(f"imdb: expected unit 'bytes' or 'characters', got {unit!r}.")
    _check_length("imdb", length)
    held = load_cached(f"imdb-{unit}-{length}", lambda: _encode(unit, length))
    vocabulary = BYTES if unit == "bytes" else int(held["vocabulary"][0])
    tokeniser = Tokeniser("bytes") if unit == "bytes" else None
    return _task("imdb", held, vocabulary, (validation, seed, packed), (f"{unit}, cut at {length}",), tokeniser)


def imdb_words(
    *,
    length: int = 500,
    vocabulary: str | Path | None = None,
    lengths: bool = False,
    validation: float = 0.1,
    seed: int = 0,
    packed: bool | None = None,
) -> Task:
    """Reviews in lower-cased words and pieces of words, [CLS] .. [SEP], padded on the right to `length`.

    vocabulary  a vocab.txt, such as that of bert-base-uncased, used in the study; None: 30,522 pieces learned from the
                training part, which needs no download and splits rare words differently
    lengths     False, as in the study: the model reads the padding, too
    """
    _check_length("imdb_words", length)
    words = None if vocabulary is None else Path(vocabulary).read_text(encoding="utf-8").splitlines()
    mark = "own" if words is None else hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
    held = load_cached(f"imdb-words-{mark}-{length}", lambda: _pieces(words, length))
    if not lengths:
        held = {name: array for name, array in held.items() if not name.endswith("lengths")}
    origin = f"pieces of words of {vocabulary or 'the training part itself, not of bert-base-uncased'}"
    tokeniser = None if words is None else Tokeniser("pieces", tuple(words))
    return _task("imdb-words", held, int(held["vocabulary"][0]), (validation, seed, packed), (origin,), tokeniser)


def read_reviews() -> dict[str, Reviews]:
    """{"train", "test"}: texts as UTF-8 and labels (25000,), 1 for positive, in the order of the texts' hash."""
    folder = data_folder() / "imdb"
    files = {part: folder / f"{part}.tsv.xz" for part in _PARTS}
    if all(path.is_file() for path in files.values()):
        found = {part: parse_reviews(_unpack(path), str(path)) for part, path in files.items()}
    else:
        found = _from_archive(fetch(ARCHIVE))
    for part, (_, labels) in found.items():
        if np.bincount(labels, minlength=2).tolist() != [_EACH, _EACH]:
            raise ValueError(
                f"imdb: expected {_EACH} reviews of each kind in {part}, got {np.bincount(labels).tolist()}."
            )
    return {part: _order_reviews(*reviews) for part, reviews in found.items()}


def parse_reviews(data: bytes, where: str = "reviews") -> Reviews:
    """Split lines only at line feeds and columns only at the first tab: reviews contain tabs and other line ends."""
    texts, labels = [], []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=1):
        label, tab, text = line.partition(b"\t")
        if label not in (b"0", b"1") or not tab:
            raise ValueError(f"{where}, line {number}: expected 0 or 1, a tab and the text, got {line[:40]!r}.")
        texts.append(text)
        labels.append(int(label))
    return texts, np.array(labels, dtype=np.uint8)


def _unpack(path: Path) -> bytes:
    try:
        with lzma.open(path) as file:
            return file.read()
    except (lzma.LZMAError, EOFError) as wrong:
        raise ValueError(
            f"imdb: {str(path)!r} is damaged ({wrong}); replace it, or remove it to download {URL}."
        ) from wrong


def _from_archive(path: Path) -> dict[str, Reviews]:
    found: dict[str, tuple[list[bytes], list[int]]] = {part: ([], []) for part in _PARTS}
    with tarfile.open(path) as tar:
        for member in tar:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[1] in found and parts[2] in ("neg", "pos"):
                file = tar.extractfile(member)
                found[parts[1]][0].append(b"" if file is None else file.read())
                found[parts[1]][1].append(int(parts[2] == "pos"))
    return {part: (texts, np.array(labels, dtype=np.uint8)) for part, (texts, labels) in found.items()}


def _order_reviews(texts: list[bytes], labels: np.ndarray) -> Reviews:
    order = sorted(range(len(texts)), key=lambda i: (hashlib.sha256(texts[i]).digest(), labels[i]))
    return [texts[i] for i in order], labels[order]


def _encode(unit: Unit, length: int) -> Arrays:
    reviews = read_reviews()
    held: Arrays = {}
    known = alphabet((t.decode()[: length - 1] for t in reviews["train"][0]), _FEWEST) if unit == "characters" else {}
    for part, (texts, labels) in reviews.items():
        if unit == "bytes":
            tokens, sizes = encode_bytes(texts, length)
        else:
            tokens, sizes = encode_characters([text.decode() for text in texts], length, known)
        held |= {f"{part}_x": tokens, f"{part}_y": labels, f"{part}_lengths": sizes}
    return held | {"vocabulary": np.array([END + 1 + len(known)])}


def _pieces(words: list[str] | None, length: int) -> Arrays:
    texts = {part: ([text.decode() for text in found], labels) for part, (found, labels) in read_reviews().items()}
    pieces = Pieces(words or _load_pieces(texts["train"][0]))
    held: Arrays = {"vocabulary": np.array([len(pieces)])}
    for part, (found, labels) in texts.items():
        tokens, sizes = encode_all(found, length, pieces)
        held |= {f"{part}_x": tokens, f"{part}_y": labels, f"{part}_lengths": sizes}
    return held


def _load_pieces(texts: list[str]) -> list[str]:
    """The pieces of the training part: learned once for all lengths."""
    held = load_cached("imdb-pieces", lambda: {"utf8": _as_bytes(learn_pieces(texts, SIZE))})
    return held["utf8"].tobytes().decode().split("\n")


def _as_bytes(words: list[str]) -> np.ndarray:
    """One word per line; no word contains a line feed."""
    return np.frombuffer("\n".join(words).encode(), dtype=np.uint8)


def _task(
    name: str, held: Arrays, vocabulary: int, rest: tuple[float, int, bool | None], notes: tuple[str, ...],
    tokeniser: Tokeniser | None = None,
) -> Task:  # fmt: skip
    train, test = (Part(held[f"{p}_x"], held[f"{p}_y"], held.get(f"{p}_lengths"), levels=0) for p in _PARTS)
    return Task(
        name, *three_splits(train, test, *rest), length=train.x.shape[1], vocabulary=vocabulary, classes=2,
        class_names=("negative", "positive"), licence="none stated by its authors",
        source="A. Maas et al. (2011), Learning Word Vectors for Sentiment Analysis", notes=notes, tokeniser=tokeniser,
    )  # fmt: skip


def _check_length(where: str, length: int) -> None:
    if length < 3:
        raise ValueError(f"{where}: expected a length of 3 or more, got {length}.")
