"""The real sets, where the data folder holds them: sizes, orders of pixels, and facts known from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from resolvent.data import data_folder, load_task
from resolvent.data.order import shuffle
from resolvent.data.tasks.cifar import CHECKSUMS, grey, read_cifar, sequences
from resolvent.data.tasks.mnist import read_idx, read_mnist

Need = Callable[..., None]
MNIST = "mnist/train-images-idx3-ubyte.gz"
CIFAR = tuple(f"cifar-10-batches-bin/{name}" for name in CHECKSUMS)
IMDB = ("imdb/train.tsv.xz", "imdb/test.tsv.xz")


def test_mnist(need: Need) -> None:
    need(MNIST)
    held = read_mnist()
    assert np.bincount(held["train_y"]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(held["test_y"]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    level, share = np.arange(256) / 255, np.bincount(held["train_x"].ravel(), minlength=256) / (60_000 * 784)
    assert abs(share @ level - 0.1307) < 5e-5  # mean and deviation as everybody quotes them
    assert abs(np.sqrt(share @ level**2 - (share @ level) ** 2) - 0.3081) < 5e-5
    assert held["train_y"][:5].tolist() == [5, 0, 4, 1, 9]


def test_mnist_as_tasks(need: Need) -> None:
    need(MNIST)
    task, other = load_task("mnist", packed=True), load_task("permuted-mnist", packed=True)
    assert [len(split) for split in task.splits().values()] == [54_001, 5_999, 10_000]
    assert (task.length, task.channels, task.classes, task.bounds) == (784, 1, 10, (0.0, 1.0))
    image = task.test.select(torch.tensor([0])).x[0, :, 0].reshape(28, 28)
    assert float(image[0].max()) == 0  # a dark frame: rows are rows
    assert other.test.x[:20].equal(task.test.x[:20][:, torch.from_numpy(shuffle(784, 784))])
    assert len(load_task("mnist", validation=0.0, packed=True).validation) == 0


def test_cifar_pixels_are_in_order(need: Need) -> None:
    need(*CIFAR)
    raw = np.fromfile(data_folder() / CIFAR[-1], np.uint8).reshape(-1, 3073)
    held = read_cifar()
    for i in (0, 9_999):
        for row, column in ((0, 0), (3, 17), (31, 31)):
            want = [raw[i, 1 + 1024 * colour + 32 * row + column] for colour in range(3)]
            assert held["test_x"][i, 32 * row + column].tolist() == want
    assert np.bincount(held["train_y"]).tolist() == [5000] * 10
    mean = held["train_x"].reshape(-1, 3)[::7].mean(0) / 255
    assert np.abs(mean - [0.4914, 0.4822, 0.4465]).max() < 5e-4


def test_the_planes_are_the_files_own_order(need: Need) -> None:
    need(*CIFAR)
    raw = np.fromfile(data_folder() / CIFAR[-1], np.uint8, count=5 * 3073).reshape(-1, 3073)
    planes = sequences(read_cifar()["test_x"][:5], "planes")
    assert planes.reshape(5, 3072).tolist() == raw[:, 1:].tolist()  # three by three
    with pytest.raises(ValueError, match="'pixels' or 'planes'"):
        load_task("cifar10", layout="chw")


def test_grey_is_that_of_another_program() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is the other program")
    colours = np.random.default_rng(0).integers(0, 256, (4, 1024, 3)).astype(np.uint8)
    want = [np.asarray(image.fromarray(one.reshape(32, 32, 3)).convert("L")) for one in colours]
    assert np.array_equal(grey(colours)[..., 0].reshape(4, 32, 32), np.stack(want))


@pytest.mark.slow
def test_cifar_variants(need: Need) -> None:
    need(*CIFAR)
    task = load_task("cifar10", normalise=True)
    assert float(task.train.x.mean(dim=(0, 1)).abs().max()) < 0.02
    assert task.bounds is None
    assert load_task("cifar10-grey").train.x.shape == (45_000, 1024, 1)
    pixels, planes = load_task("cifar10", packed=True), load_task("cifar10", layout="planes", augment=True, packed=True)
    assert pixels.train.x[:5].transpose(1, 2).reshape(5, 1024, 3).equal(planes.train.x[:5])
    assert pixels.augment is None
    assert planes.augment is not None
    assert planes.augment.layout == "planes"


@pytest.mark.slow
def test_imdb_bytes(need: Need) -> None:
    need(*IMDB)
    task = load_task("imdb", packed=True)
    assert [len(split) for split in task.splits().values()] == [22_500, 2_500, 25_000]
    assert (task.length, task.vocabulary, task.classes) == (4096, 257, 2)
    assert torch.bincount(task.test.y).tolist() == [12_500, 12_500]
    assert task.train.lengths is not None
    sample = task.train.select(torch.tensor([0]))
    assert sample.lengths is not None
    text = bytes((sample.x[0, : int(sample.lengths[0])] - 1).tolist()).decode(errors="ignore")
    assert " the " in text
    again = load_task("imdb", packed=True, seed=0)
    assert again.train.y.equal(task.train.y)


@pytest.mark.slow
def test_imdb_words_and_characters(need: Need) -> None:
    need(*IMDB)
    words = load_task("imdb-words", length=200)
    assert words.vocabulary == 30_522
    assert words.train.lengths is None
    assert words.train.x[:, 0].unique().tolist() == [2]  # [CLS]
    unknown = float((words.test.x == 1).float().mean())
    assert unknown < 0.001
    characters = load_task("imdb", unit="characters", packed=True)
    assert characters.vocabulary in (134, 135)  # 135 in S4's comment; one letter of this copy is near the threshold


def test_idx_files_are_checked() -> None:
    good = b"\0\0\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    assert read_idx(good).tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong, message in ((good[:-1], "expected 6 values"), (b"\0\0\x0d\x01", "unsigned bytes"), (b"", "unsigned")):
        with pytest.raises(ValueError, match=message):
            read_idx(wrong)


def test_without_the_files_the_message_helps(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import resolvent.data.download as home

    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    monkeypatch.setattr(home, "_retrieve", _offline)
    for name, file in (("mnist", MNIST), ("cifar10", CIFAR[0]), ("imdb", "aclImdb_v1.tar.gz")):
        with pytest.raises(FileNotFoundError) as raised:
            load_task(name)
        for part in (str(tmp_path), file, "https://", "RESOLVENT_DATA"):
            assert part in str(raised.value), (name, part)


def _offline(url: str, remote: object) -> None:
    raise OSError("no network")
