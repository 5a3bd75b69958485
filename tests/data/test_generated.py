"""Majority and sinusoids: what the rules promise, counted and measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from resolvent.data import load_task
from resolvent.data.order import uniform


def test_majority_counts_ones() -> None:
    task = load_task("majority", length=101, samples=(4000, 10, 3000), noise=0.0)
    for split in task.splits().values():
        assert ((split.x.sum(1) * 2 > 101).long()).equal(split.y)
    ones = task.train.x.sum(1)
    assert int(ones.min()) == 0
    assert int(ones.max()) == 101
    assert abs(float(ones.double().mean()) / 101 - 0.5) < 0.02  # the number of ones is uniform
    assert abs(float(task.train.x.double().mean(0).std())) < 0.02  # and their places are even


def test_majority_noise_hits_the_training_part_after_labelling() -> None:
    clean = load_task("majority", length=60, samples=3000, noise=0.0)
    for noise in (0.25, 0.10):
        noisy = load_task("majority", length=60, samples=3000, noise=noise)
        assert noisy.train.y.equal(clean.train.y)
        assert noisy.test.x.equal(clean.test.x)
        flipped = clean.train.x - noisy.train.x
        assert int(flipped.min()) == 0  # ones become zeros, never the other way
        assert abs(float(flipped.sum() / clean.train.x.sum()) - noise) < 0.01


def test_majority_of_one_step() -> None:
    task = load_task("majority", length=1, samples=20, noise=0.0)
    assert task.train.x[:, 0].equal(task.train.y)


def test_sinusoids_are_what_their_targets_say() -> None:
    """The projection onto sine and cosine of the target frequency gives back the amplitude."""
    task = load_task("sinusoids", length=2000, duration=10.0, samples=(20, 5, 5), frequencies=(5.0, 60.0))
    t = torch.arange(2000, dtype=torch.float64) * 10.0 / 2000
    for x, (s, a) in zip(task.train.x[..., 0].double(), task.train.y.double(), strict=True):
        basis = torch.stack([(s * 60 * t).sin(), (s * 60 * t).cos()], 1)
        found = torch.linalg.lstsq(basis, x[:, None]).solution[:, 0]
        assert abs(float(found.norm()) - float(a) * 1.5) < 1e-4  # the targets are stored in float32
        assert float((basis @ found - x).abs().max()) < 1e-3


def test_sinusoids_extrapolate_and_carry_noise() -> None:
    task = load_task("sinusoids", samples=(2000, 5, 50), test_frequencies=(90.0, 200.0))
    assert float(task.train.y[:, 0].max()) <= 1
    assert float(task.test.y[:, 0].min()) >= 90 / 80
    noisy = load_task("sinusoids", samples=(2000, 5, 5), noise=0.5)
    assert abs(float((noisy.train.x - task.train.x).std()) - 0.5) < 0.01
    assert task.classes is None
    assert task.bounds is None


def test_the_same_numbers_for_ever() -> None:
    assert uniform((3,), 1, 2).tolist() == uniform((5,), 1, 2)[:3].tolist()
    many = uniform((100_000,), 7)
    assert abs(many.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 100_000)
    assert np.all((many >= 0) & (many < 1))
    assert load_task("majority", seed=3).train.x.equal(load_task("majority", seed=3).train.x)
    assert not load_task("majority", seed=3).train.x.equal(load_task("majority", seed=4).train.x)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("majority", {"length": 0}, "length from 1"),
        ("majority", {"noise": 2.0}, "noise from 0 to 1"),
        ("majority", {"samples": (1, 2)}, "train, validation, test"),
        ("sinusoids", {"frequencies": (1.0, 4000.0)}, "under two samples a period"),
        ("sinusoids", {"amplitudes": (2.0, 1.0)}, "low <= high"),
        ("sinusoids", {"length": 1}, "length from 2"),
    ],
)
def test_bad_settings_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_task(name, **options)


def test_an_unknown_option_offers_the_nearest() -> None:
    with pytest.raises(TypeError, match="no option 'lenght'; did you mean 'length'"):
        load_task("majority", lenght=5)
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        load_task("cifar")
    assert load_task("majority", samples=5).name == "majority"
