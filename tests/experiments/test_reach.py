"""`run train --eps-raw`: what it trains and attacks against is what the file's units say; tokens are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resolvent import cli
from resolvent.commands.run.train import train_cell
from resolvent.commands.run.train_options import DataOptions, ModelOptions, TrainingOptions
from resolvent.usage.error import UsageError

SMALL = ModelOptions(width=8, layers=1)


def table(place: Path) -> Path:
    generator = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = generator.normal(size=(60, 7, 3)) * [20.0, 0.5, 1.0] + [100.0, 0.0, 3.0] + y[:, None, None] * [30.0, 0.0, 1.0]
    np.savez(place, x=x.astype(np.float32), y=np.array(["no", "yes"])[y])
    return place


def test_sizes_and_bounds_in_the_files_units(tmp_path: Path) -> None:
    source = DataOptions(data=str(table(tmp_path / "mine.npz")), scale="standard")
    options = TrainingOptions(
        objective="pgd-at", eps_raw="4,0.05,1/2", bounds_raw=("-1000,-50,-100", "1000,50,100"), epochs=1
    )
    cell, task = train_cell(source, SMALL, options)
    assert task.preprocess is not None
    width, centre = np.array(task.preprocess.width), np.array(task.preprocess.centre)
    assert cell.goal.channels == pytest.approx(np.array([4, 0.05, 0.5]) / width)
    assert cell.goal.eps == max(cell.goal.channels)
    assert cell.goal.low == pytest.approx((np.array([-1000, -50, -100]) - centre) / width)
    assert cell.attacks[0].channels == cell.goal.channels
    assert cell.attacks[0].high == cell.goal.high
    threat = cell.goal.threat(task.bounds)
    assert threat is not None
    moved = threat.project(task.train.x + 100, task.train.x)
    raw = (moved - task.train.x).abs().amax((0, 1)).numpy() * width
    assert raw == pytest.approx([4, 0.05, 0.5], rel=1e-4)


def test_one_raw_number_differs_by_channel_and_one_size_stays_one(tmp_path: Path) -> None:
    source = DataOptions(data=str(table(tmp_path / "mine.npz")), scale="standard")
    cell, task = train_cell(source, SMALL, TrainingOptions(eps_raw="0.1"))
    assert task.preprocess is not None
    assert cell.goal.channels == pytest.approx(0.1 / np.array(task.preprocess.width))
    plain, _ = train_cell(source, SMALL, TrainingOptions(eps="0.1"))
    assert (plain.goal.eps, plain.goal.channels, plain.attacks[0].name) == (0.1, (), "fast-linf-0.1")
    raw, _ = train_cell(DataOptions(data=source.data), SMALL, TrainingOptions(eps_raw="0.1"))
    assert (raw.goal.eps, raw.goal.channels) == (0.1, ())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"eps": "0.1,0.2"}, "3 channels"),
        ({"eps_raw": "0.1,0.2"}, "3 channels"),
        ({"eps": "0.1", "eps_raw": "0.1"}, "one of them"),
        ({"eps": "0.1", "bounds": ("0,-1", "1,1")}, "3 channels"),
        ({"eps": "0.1", "bounds": ("1", "0")}, "LOW below HIGH"),
        ({"eps": "0.1", "bounds": ("-inf", "0")}, "finite"),
        ({"bounds": ("0", "1")}, "add --eps"),
        ({"eps": "-1"}, "negative"),
        ({"eps": "1e400"}, "--eps"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    source = DataOptions(data=str(table(tmp_path / "mine.npz")), scale="standard")
    with pytest.raises(UsageError, match=says):
        train_cell(source, SMALL, TrainingOptions(**options))


def test_tokens_cannot_be_attacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "words.npz", x=generator.integers(0, 9, (40, 6)), y=np.arange(40) % 2)
    words = ["run", "train", "--data", str(tmp_path / "words.npz"), "--out", str(tmp_path / "runs")]
    for more in (["--eps", "0.1"], ["--eps-raw", "0.1"], ["--eps", "0.1", "--objective", "pgd-at"]):
        assert cli.main([*words, *more]) == 2
        output = capsys.readouterr().err
        assert "tokens" in output
        assert "--embedding" in output
        assert not (tmp_path / "runs").exists()


def test_a_run_is_attacked_as_it_was_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = table(tmp_path / "mine.npz"), tmp_path / "runs"
    sizes = ["--eps-raw", "10,0.2,0.5"]
    words = ["--scale", "standard", "--width", "8", "--layers", "1", "--epochs", "1", "--no-report", "--out", str(out)]
    assert cli.main(["run", "train", "--data", str(data), "--objective", "pgd-at", *sizes, *words]) == 0
    record = next(out.rglob("record.json"))
    row = next(v for k, v in json.loads(record.read_text())["attacks"].items() if k.endswith("-best"))
    assert len(row["threat"]["eps"]) == 3
    run = next(p for p in (record, *record.parents) if (p / "checkpoint").is_dir())
    capsys.readouterr()
    assert cli.main(["attack", str(run), "--preset", "fast", *sizes, "--out", str(tmp_path / "again")]) == 0
    again = json.loads((tmp_path / "again" / "record.json").read_text())
    assert again["threat"] == row["threat"]
    assert again["accuracy"] == row["accuracy"]
