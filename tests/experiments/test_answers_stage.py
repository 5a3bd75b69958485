"""What the stages tell of samples: which class is taken for which, PGD-10 on AutoAttack's samples, no padding."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent.experiments import TaskChoice, run_cell
from resolvent.experiments.tasks import open_task
from resolvent.models import ChannelsConfig, load_model

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell

LENGTHS = torch.tensor([9, 4, 7, 5, 8, 6] * 12)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three channels, uneven lengths, NaN in the padding, names for answers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(72, 9, 3, generator=generator)
    y = np.array(["rain", "sun"])[(x[:, 0, 0] > 0.5).long().numpy()]
    x[torch.arange(9) >= LENGTHS[:, None]] = float("nan")
    path = tmp_path_factory.mktemp("data") / "weather.npz"
    np.savez(path, x=x.numpy(), y=y, lengths=LENGTHS.numpy())
    return path


def test_answers_and_examples_of_padded_data(padded: Path, tmp_path: Path) -> None:
    cell = small_cell(task=TaskChoice("weather", file=str(padded)))
    head = replace(cell.model.head, classes=2)  # type: ignore[type-var]
    cell = replace(cell, model=replace(cell.model, input=ChannelsConfig(3), head=head))
    record = run_cell(cell, tmp_path / "run", tell=lambda line: None)
    test = open_task(cell.task).test.unpack()
    with torch.no_grad():
        answers = load_model(tmp_path / "run/checkpoint/best").eval()(test.x, test.lengths).argmax(-1)
    wanted = [[int(((test.y == i) & (answers == j)).sum()) for j in (0, 1)] for i in (0, 1)]
    assert record["answers"]["confusion"] == wanted
    assert record["answers"]["of"] == [sum(line) for line in wanted]
    assert record["answers"]["right"] == [wanted[0][0], wanted[1][1]]
    assert record["task"]["class_names"] == ["rain", "sun"]
    right = sum(record["answers"]["right"]) / len(test.y)
    assert right == pytest.approx(record["training"]["summary"]["best"]["test_clean"])
    for attack in record["attacks"].values():
        assert test.lengths is not None
        assert attack["accuracy"] - attack["pgd10"]["missed"] / attack["samples"] <= attack["pgd10"]["accuracy"]
        for example in attack["examples"]:
            assert len(example["clean"]) == len(example["attacked"]) == int(test.lengths[example["index"]])
            assert len(example["clean"][0]) == 3


def test_pgd_is_measured_on_the_samples_of_the_attack(tmp_path: Path) -> None:
    from resolvent.attacks import PGD, Threat

    cell = small_cell(task=TaskChoice("digits", samples=32))
    record = run_cell(replace(cell, budget=replace(cell.budget, epochs=1)), tmp_path / "run", tell=lambda line: None)
    test = open_task(cell.task).test.unpack()
    model = load_model(tmp_path / "run/checkpoint/best").eval()
    attack = record["attacks"]["fast-linf-0.05-best"]
    x, y = test.x[:16], test.y[:16]
    weak = PGD(10)(model, x, y, Threat("linf", 0.05, (0.0, 1.0)))
    assert attack["samples"] == 16
    assert attack["pgd10"]["accuracy"] == pytest.approx(1 - float(weak.success.double().mean()), abs=2 / 16)
    assert attack["accuracy"] <= attack["pgd10"]["accuracy"] <= attack["clean_accuracy"]
