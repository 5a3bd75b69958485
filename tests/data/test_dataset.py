"""Datasets and loaders of torch as tasks: the same task as from their arrays, padding and words included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from resolvent.data import Task, from_arrays, from_dataset


class Pairs(Dataset[Any]):
    def __init__(self, xs: list[Any], ys: list[Any]) -> None:
        self.xs, self.ys = xs, ys

    def __len__(self) -> int:
        return len(self.xs)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.xs[i], self.ys[i]


def same(a: Task, b: Task) -> None:
    for name, split in a.splits().items():
        other = b.splits()[name]
        assert torch.equal(split.x, other.x)
        assert torch.equal(split.y, other.y)
        assert (split.lengths is None) == (other.lengths is None)
        if split.lengths is not None:
            assert torch.equal(split.lengths, other.lengths)
    assert a.preprocess == b.preprocess


def arrays(n: int = 30, l: int = 7, c: int = 2) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, l, c, generator=g), torch.arange(n) % 3


def test_a_dataset_is_its_arrays() -> None:
    x, y = arrays()
    same(from_dataset(TensorDataset(x, y), scale="standard"), from_arrays(x, y, scale="standard"))
    same(from_dataset(DataLoader(TensorDataset(x, y), batch_size=8)), from_arrays(x, y))
    same(from_dataset(Pairs([v.numpy() for v in x[..., 0]], y.tolist())), from_arrays(x[..., 0], y))


def test_uneven_sequences_and_words() -> None:
    x, _ = arrays()
    lengths = torch.tensor([3 + i % 5 for i in range(30)])
    words = [("walk", "run", "sit")[i % 3] for i in range(30)]
    cut = [v[:n] for v, n in zip(x, lengths, strict=True)]
    held = torch.where((torch.arange(7) < lengths[:, None])[..., None], x, 0.0)
    task = from_dataset(Pairs(cut, words), scale="minmax")
    same(task, from_arrays(held, np.array(words), lengths, scale="minmax"))
    assert task.class_names == ("run", "sit", "walk")


def test_padded_batches_come_with_their_lengths() -> None:
    """What a loader has padded, with whatever stands there, is the task of the sequences as they were."""
    x, y = arrays()
    lengths = torch.tensor([3 + i % 5 for i in range(30)])
    cut = Pairs([v[:n] for v, n in zip(x, lengths, strict=True)], y.tolist())
    same(from_dataset(DataLoader(TensorDataset(x, y, lengths), batch_size=8), scale="standard"),
         from_dataset(cut, scale="standard"))  # fmt: skip
    same(from_dataset(list(zip(x.numpy(), y.tolist(), lengths.numpy(), strict=True))), from_dataset(cut))


def test_real_targets_and_tokens() -> None:
    x, _ = arrays()
    same(from_dataset(Pairs(list(x), [0.5 * i for i in range(30)])), from_arrays(x, [0.5 * i for i in range(30)]))
    tokens, y = torch.randint(0, 9, (30, 5), generator=torch.Generator().manual_seed(1)), torch.arange(30) % 2
    same(from_dataset(Pairs(list(tokens), y.tolist())), from_arrays(tokens, y))


def test_a_test_set_of_its_own() -> None:
    x, y = arrays()
    task = from_dataset(TensorDataset(x, y), test=TensorDataset(x[:6, :4] + 1, y[:6]))
    assert len(task.test) == 6
    assert task.test.lengths is not None
    assert task.test.lengths.tolist() == [4] * 6
    assert torch.equal(task.test.x[:, :4], x[:6, :4] + 1)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Stream(), "expected a map-style Dataset"),
        (Pairs([], []), "holds no samples"),
        ([1, 2, 3], r"expected \(x, y\) or \(x, y, length\), got int at dataset\[0\]"),
        ([(torch.zeros(3, 2), 0, 3, 1)], "got tuple of 4"),
        ([(torch.zeros(3, 2), 0, 4)], r"a length from 1 to 3 steps, got 4 at dataset\[0\]"),
        ([(torch.zeros(3, 2), 0, 0)], "got 0"),
        ([(torch.zeros(3, 2), 0, 1.5)], r"got 1\.5"),
        (Pairs([torch.zeros(3, 2, 2)], [0]), r"expected x of shape \(l,\) or \(l, c\)"),
        (Pairs([torch.zeros(3, 2), torch.zeros(3, 1)], [0, 1]), r"dataset\[1\]"),
        (Pairs([torch.zeros(0, 2)], [0]), "expected x of shape"),
        (Pairs([["a"]], [0]), "expected numbers in x"),
    ],
)
def test_bad_datasets_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        from_dataset(wrong)
