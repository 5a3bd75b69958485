"""Text as numbers: bytes, characters, and pieces of words beside another implementation of the same rules."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.data.readers.text import alphabet, encode_bytes, encode_characters
from resolvent.data.readers.wordpiece import SPECIAL, Pieces, encode_all, learn_pieces, split_words
from resolvent.data.tasks import imdb as home
from resolvent.data.tasks.imdb import imdb_words, parse_reviews


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=5), st.integers(1, 10))
def test_bytes_come_back(texts: list[bytes], length: int) -> None:
    tokens, lengths = encode_bytes(texts, length)
    for text, row, size in zip(texts, tokens, lengths, strict=True):
        assert bytes((row[:size] - 1).tolist() if text else []) == text[:length]
        assert (row[len(text) :] == 0).all()
        assert size == max(1, min(len(text), length))


def test_characters_are_numbered_by_frequency() -> None:
    known = alphabet(["aab", "abc"], fewest=2)
    assert known == {"a": 3, "b": 4}
    tokens, lengths = encode_characters(["abc", "aaaaaaaa"], 5, known)
    assert tokens.tolist() == [[3, 4, 1, 2, 0], [3, 3, 3, 3, 2]]
    assert lengths.tolist() == [4, 5]


def test_words_are_cut_at_spaces_and_marks() -> None:
    assert split_words("Don't <br />stop!  Café\tNaïve—dash") == [
        "don", "'", "t", "<", "br", "/", ">", "stop", "!", "cafe", "naive", "—", "dash",
    ]  # fmt: skip


VOCABULARY = [*SPECIAL, "un", "##aff", "##able", "the", "movie", "!", "'", "a", "##b", "##c", "cafe", "ı", "中"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> object:
    tokenizers = pytest.importorskip("tokenizers", reason="its BertWordPieceTokenizer is the other implementation")
    path: Path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("\n".join(VOCABULARY), encoding="utf-8")
    return tokenizers.BertWordPieceTokenizer(str(path), lowercase=True)


# Unicode grows, and the other implementation has an older one: what has been the same since 3.2 is the same in both.
SETTLED = st.characters(max_codepoint=0x2FFF, exclude_categories=["Cn", "Cs", "Co"]).filter(
    lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
)
TEXTS = st.one_of(
    st.text(alphabet="unaffable themovi!'bc \té中<—\x00\u200b", max_size=40),
    st.text(SETTLED, max_size=20),
    st.lists(st.sampled_from(["un", "aff", "able", "THE", "movie", "Café", " ", "'", "中"]), max_size=8).map("".join),
)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_pieces_are_those_of_another_tokenizer(bert: object, text: str) -> None:
    want = bert.encode(text).ids  # type: ignore[attr-defined]
    assert Pieces(VOCABULARY).encode(text, 1000) == want


def test_long_texts_are_cut_before_the_end_mark() -> None:
    pieces = Pieces(VOCABULARY)
    numbers = pieces.encode("the movie " * 50, 10)
    assert len(numbers) == 10
    assert numbers[0] == SPECIAL.index("[CLS]")
    assert numbers[-1] == SPECIAL.index("[SEP]")
    tokens, lengths = encode_all(["the movie", "the " * 50], 6, pieces)
    assert lengths.tolist() == [4, 6]
    assert tokens[0].tolist() == [2, 8, 9, 3, 0, 0]


def test_a_learned_vocabulary_knows_every_word_of_its_text() -> None:
    texts = ["the cat sat on the mat", "the catalogue of mats, sitting!", "a cat"] * 3
    words = learn_pieces(texts, 70)
    assert len(words) == len(set(words)) <= 70
    assert "the" in words
    pieces = Pieces(words)
    for text in texts:
        assert pieces.number["[UNK]"] not in pieces.encode(text, 100)
    assert pieces.number["[UNK]"] in pieces.encode("Ω", 100)
    assert learn_pieces(texts, 70) == words
    with pytest.raises(ValueError, match="size of at least"):
        learn_pieces(texts, 8)


def test_a_vocabulary_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[CLS\]"):
        Pieces(["[PAD]", "[UNK]", "a"])


def test_reviews_split_at_the_first_tab_and_line_feeds_only() -> None:
    data = "1\tgood\tvery\x85good\r\n0\tbad\u2028\n".encode()
    texts, labels = parse_reviews(data)
    assert [text.decode() for text in texts] == ["good\tvery\x85good\r", "bad\u2028"]
    assert labels.tolist() == [1, 0]
    assert labels.dtype == np.uint8
    with pytest.raises(ValueError, match=r"r\.tsv, line 2: expected 0 or 1"):
        parse_reviews(b"1\tgood\n2\tbad\n", "r.tsv")


def test_pieces_of_reviews_are_learnt_once_for_all_lengths(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"review {i} was écrit \u0085 well".encode() for i in range(20)]
    labels = np.arange(20, dtype=np.uint8) % 2
    calls: list[int] = []

    def learn(texts: list[str], size: int) -> list[str]:
        calls.append(size)
        return learn_pieces(texts, 400)

    monkeypatch.setattr(home, "read_reviews", lambda: {"train": (texts, labels), "test": (texts, labels)})
    monkeypatch.setattr(home, "learn_pieces", learn)
    short, long = imdb_words(length=5), imdb_words(length=9)
    assert calls == [home.SIZE]
    assert short.train.x[:, :4].equal(long.train.x[:, :4])  # the fifth of the short ones is the end mark
    known = learn_pieces([text.decode() for text in texts], 400)
    assert long.vocabulary == len(known)
    assert (long.train.x[0] == known.index("ecrit")).any()
