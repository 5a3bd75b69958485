"""`resolvent run train --layer reservoir`: random systems, a read-out in closed form, a run as any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent import cli
from resolvent.commands.run.train import train_cell
from resolvent.commands.run.train_options import DataOptions, ModelOptions, TrainingOptions


def test_a_reservoir_is_solved_measured_and_loaded(tmp_path: Path) -> None:
    """From a file to a prediction, with samples of uneven length and two channels."""
    rng, rows = np.random.default_rng(0), ["id,time,u,v,label"]
    for i in range(60):
        quick = i % 2
        for t in range(20 + i % 5):
            wave = np.sin((0.4 + 1.6 * quick) * t + i)
            rows.append(f"{i},{t},{wave:.5f},{rng.normal():.5f},{'quick' if quick else 'slow'}")
    (tmp_path / "gait.csv").write_text("\n".join(rows) + "\n")
    command = ["run", "train", "--data", str(tmp_path / "gait.csv"), "--scale", "standard", "--layer", "reservoir"]
    assert cli.main([*command, "--width", "40", "--out", str(tmp_path / "runs")]) == 0
    folder = next((tmp_path / "runs").rglob("record.json")).parent
    record = json.loads((folder / "record.json").read_text())
    assert [row["lr"] for row in record["training"]["rows"]] == [0.0]  # measured, not trained
    ready = rv.load(folder)
    assert ready.score(tmp_path / "gait.csv") > 0.9
    task = rv.from_file(tmp_path / "gait.csv", scale="standard")
    again = rv.build_model(rv.models.reservoir_config(2, 2, systems=40))
    train, generator = task.train, torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    rv.models.learn_reservoir(again, train.x, train.y, train.lengths, generator=generator)
    assert ready.model.config == again.config
    torch.testing.assert_close(again(train.x, train.lengths), ready.model(train.x, train.lengths), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "words", [["--layers", "2"], ["--certified"], ["--block", "mlp"], ["--init", "legs"], ["--ads", "relu"]]
)
def test_a_reservoir_has_no_other_parts(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "train", "--layer", "reservoir", *words, "--out", str(tmp_path)]) == 2
    assert words[0] in capsys.readouterr().err


def test_a_reservoir_refuses_what_has_no_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "train", "--data", "sinusoids", "--layer", "reservoir", "--out", str(tmp_path)]) == 2
    assert "reservoir" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--class-weights", "balanced"], ["--lr", "0.01"], ["--patience", "3"], ["--average", "ema"]]
)
def test_options_of_steps_are_refused_where_none_is_taken(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The closed form would ignore them."""
    command = ["run", "train", "--data", "digits", "--layer", "reservoir", *words, "--out", str(tmp_path)]
    assert cli.main(command) == 2
    told = capsys.readouterr().err
    assert words[0] in told
    assert "--epochs" in told
    assert not list(tmp_path.iterdir())


def test_options_of_steps_reach_the_training_from_the_solution() -> None:
    training = TrainingOptions(epochs=2, class_weights="balanced", patience=3, average="ema", lr=0.01)
    cell, _ = train_cell(DataOptions(), ModelOptions(layer="reservoir", width=8), training)
    assert len(cell.goal.weights) == 10
    assert (cell.budget.patience, cell.budget.average, cell.budget.lr) == (3, "ema", 0.01)


def test_long_sequences_are_measured_in_small_batches(tmp_path: Path) -> None:
    """64 samples of 5,000 steps through 250 systems took 4.7 GB."""
    np.savez(tmp_path / "long.npz", x=np.random.default_rng(0).normal(size=(20, 5000, 1)), y=np.arange(20) % 2)
    long, own = DataOptions(str(tmp_path / "long.npz")), ModelOptions(layer="reservoir")
    for source, training, size in (
        (long, TrainingOptions(), 3),
        (long, TrainingOptions(batch_size=7), 7),
        (long, TrainingOptions(epochs=2), 64),  # what is trained depends on it
        (DataOptions(), TrainingOptions(), 64),
    ):
        assert train_cell(source, own, training)[0].budget.batch_size == size


def test_the_list_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert "reservoir" in capsys.readouterr().out
