"""Tasks: the embedded digits, one's own arrays, and what is refused."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.data import Split, Task, from_arrays, load_task, task_names
from resolvent.data.order import fold, shuffle
from resolvent.data.readers.arrays import split_indices
from resolvent.data.tasks.digits import read_digits

COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # of the UCI test part, as its documentation lists them


def test_digits_are_the_uci_ones() -> None:
    ink, labels = read_digits()
    assert ink.shape == (1797, 64)
    assert ink.min() == 0
    assert ink.max() == 16
    assert np.bincount(labels).tolist() == COUNTS
    assert ink[0, :8].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # the first row of the first sample, a zero
    assert int(ink.sum()) == 561718


def test_digits_equal_another_copy() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn carries the same file")
    other = datasets.load_digits()
    ink, labels = read_digits()
    assert np.array_equal(ink, other.data)
    assert np.array_equal(labels, other.target)


def test_digits_as_a_task() -> None:
    task = load_task("digits")
    assert [len(split) for split in task.splits().values()] == [1168, 182, 447]
    assert task.train.x.shape == (1168, 64, 1)
    assert task.train.x.dtype == torch.float32
    assert (task.length, task.channels, task.vocabulary, task.classes, task.bounds) == (64, 1, None, 10, (0.0, 1.0))
    assert task.licence == "CC BY 4.0"
    assert "Alpaydin" in task.source
    assert task.train.x.max() == 1


def test_the_splits_of_digits_hold_every_sample_once() -> None:
    ink, labels = read_digits()
    pairs = zip(ink, labels, strict=True)
    want = sorted(hashlib.sha256(row.tobytes() + bytes([label])).hexdigest() for row, label in pairs)
    for seed in (0, 5):
        task = load_task("digits", seed=seed)
        found = [
            hashlib.sha256((x[:, 0] * 16).round().to(torch.uint8).numpy().tobytes() + bytes([int(y)])).hexdigest()
            for split in task.splits().values()
            for x, y in zip(split.x, split.y, strict=True)
        ]
        assert sorted(found) == want


def test_the_split_follows_the_seed() -> None:
    a, b, other = load_task("digits"), load_task("digits", seed=0), load_task("digits", seed=1)
    assert torch.equal(a.test.x, b.test.x)
    assert not torch.equal(a.test.x, other.test.x)


def test_the_shuffle_is_the_same_for_ever() -> None:
    """Written down once: another order would silently change every number that was ever reported."""
    assert shuffle(8, 0).tolist() == [4, 5, 7, 6, 2, 3, 1, 0]
    assert shuffle(10, 3).tolist() == sorted(range(10), key=lambda i: _hash(i, 3))
    assert fold(1, 2) != fold(2, 1)


def _hash(i: int, seed: int) -> int:
    """SplitMix64 in Python integers."""

    def mix(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    return mix((mix(i) + (mix(mix(seed)) >> 1)) % 2**64)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.floats(0, 0.45), st.floats(0, 0.45), st.integers(0, 9))
def test_a_split_is_a_partition_in_proportion(n: int, classes: int, validation: float, test: float, seed: int) -> None:
    y = torch.arange(n) % classes
    parts = split_indices(y, (validation, test), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    for label in y.unique():
        members = int((y == label).sum())
        for part, share in zip(parts, (1 - validation - test, validation, test), strict=True):
            assert abs(int((y[part] == label).sum()) - share * members) <= 1


def test_from_arrays_infers_what_it_is_given() -> None:
    rng = np.random.default_rng(0)
    task = from_arrays(rng.normal(size=(40, 7)), np.arange(40) % 3, lengths=np.arange(40) % 7 + 1)
    assert (task.length, task.channels, task.classes, task.bounds) == (7, 1, 3, None)
    assert task.train.x.dtype == torch.float32
    assert task.train.lengths is not None
    tokens = from_arrays(rng.integers(0, 5, size=(40, 7)), rng.normal(size=40))
    assert (tokens.channels, tokens.vocabulary, tokens.classes) == (None, int(tokens.train.x.max()) + 1, None)
    assert tokens.train.y.dtype == torch.float32


def test_rows_stay_together() -> None:
    x = torch.arange(30.0)[:, None, None].expand(30, 4, 2)
    task = from_arrays(x, torch.arange(30) % 2, lengths=torch.arange(30) % 4 + 1)
    for split in task.splits().values():
        ids = split.x[:, 0, 0].long()
        assert torch.equal(split.y, ids % 2)
        assert split.lengths is not None
        assert torch.equal(split.lengths, ids % 4 + 1)


def test_head_takes_the_first_of_each_split() -> None:
    small = load_task("digits").head(5)
    assert [len(split) for split in small.splits().values()] == [5, 5, 5]


@pytest.mark.parametrize("name", ["digit", "Digits", "igits"])
def test_an_unknown_name_offers_the_nearest(name: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'digits'"):
        load_task(name)


def test_names() -> None:
    assert "digits" in task_names()
    with pytest.raises(TypeError, match="expected a name, got int"):
        load_task(3)  # type: ignore[arg-type]


X, Y = torch.zeros(6, 4, 2), torch.arange(6) % 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[0, 0]}, "expected x of shape"),
        ({"x": torch.zeros(6, 0, 2)}, "at least one sample"),
        ({"x": X.clone().fill_(float("nan"))}, "48 missing or infinite"),
        ({"y": Y[:4]}, "6 inputs, 4 labels"),
        ({"lengths": [1, 2]}, "6 lengths from 1 to 4"),
        ({"lengths": [0, 1, 1, 1, 1, 1]}, "lengths from 1 to 4"),
        ({"lengths": [5] * 6}, "lengths from 1 to 4"),
        ({"y": Y - 1}, "labels from 0"),
        ({"bounds": (0.5, 1.0)}, "within \\[0.5, 1.0\\]"),
        ({"fractions": (0.5, 0.5)}, "below 1 together"),
    ],
)
def test_bad_arrays_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_arrays(**({"x": X, "y": Y} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["list", "U", "S", "O"])
def test_classes_may_be_words(kind: str) -> None:
    written = ["dog", "cat", "dog", "cat", "cat", "dog"]
    words = written if kind == "list" else np.array(written, dtype=kind)
    task, other = from_arrays(X, words), from_arrays(X, words, class_names=("dog", "cat", "cow"))
    assert (task.class_names, task.classes) == (("cat", "dog"), 2)
    assert (other.class_names, other.classes) == (("dog", "cat", "cow"), 3)
    plain = from_arrays(X, [1, 0, 1, 0, 0, 1])
    assert task.train.y.equal(plain.train.y)
    assert other.test.y.equal(1 - plain.test.y)


def test_words_that_are_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="class_names dog, cat in y, got 'cow'"):
        from_arrays(X, ["cow"] * 6, class_names=("dog", "cat"))
    with pytest.raises(TypeError, match="expected numbers in y"):
        from_arrays(X, np.array([None] * 6))


def test_a_task_checks_itself() -> None:
    split = Split(X, Y)
    with pytest.raises(ValueError, match="either channels"):
        Task("t", split, split, split, length=4)
    with pytest.raises(ValueError, match="shape"):
        Task("t", split, split, split, length=5, channels=2)
    with pytest.raises(TypeError, match="whole numbers as labels"):
        Task("t", Split(X, Y.float()), split, split, length=4, channels=2, classes=2)
