"""Forecasting windows: values and parts against plain indexing, no answer seen in training, a run from a CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from resolvent import cli
from resolvent.data import from_file
from resolvent.data.preparation.like import read_like
from resolvent.experiments import Budget, Cell, TaskChoice, run_cell
from resolvent.models import ChannelsConfig, ModelConfig, RegressionConfig, ResidualConfig, S4DConfig


def series(path: Path, steps: int = 200) -> np.ndarray:
    t = np.arange(steps)
    values = np.stack([np.sin(t / 7), np.cos(t / 11) + 0.01 * t], 1).astype(np.float32)
    rows = ["time,a,b", *(f"{i},{v[0]:.7g},{v[1]:.7g}" for i, v in enumerate(values))]
    path.write_text("\n".join(rows))
    return values


def test_windows_of_one_series(tmp_path: Path) -> None:
    values = series(tmp_path / "one.csv")
    task = from_file(tmp_path / "one.csv", task="forecast", window=10, horizon=3, target="b")
    assert (task.classes, task.horizon, task.length, task.channels) == (None, 3, 10, 2)
    ends = {"train": 140, "validation": 160, "test": 200}
    for part, split in task.splits().items():
        start = {"train": 0, "validation": 130, "test": 150}[part]
        count = ends[part] - start - 12
        assert len(split) == count
        for i in (0, count // 2, count - 1):
            at = start + i
            assert np.allclose(split.x[i].numpy(), values[at : at + 10], atol=1e-6)
            assert np.allclose(split.y[i].numpy(), values[at + 10 : at + 13, 1], atol=1e-6)
    # the answers of a later part are never inside of an earlier one
    assert np.allclose(task.test.y[0].numpy(), values[160:163, 1], atol=1e-6)


def test_several_series_of_an_archive_all_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 60, 2)).astype(np.float32)
    save_file({"x": x, "lengths": np.array([60, 40, 60])}, tmp_path / "many.safetensors")
    task = from_file(tmp_path / "many.safetensors", task="forecast", window=5, horizon=2)
    assert task.train.y.shape[1] == 4
    assert np.allclose(task.train.y[0].numpy(), x[0, 5:7].reshape(-1))
    assert len(task.train) == 2 * (42 - 6) + (28 - 6)


def test_whole_numbers_are_quantities_when_told(tmp_path: Path) -> None:
    rows = ["label,s0,s1", *(f"{i % 3},{i},{2 * i}" for i in range(30))]
    (tmp_path / "whole.csv").write_text("\n".join(rows))
    assert from_file(tmp_path / "whole.csv").classes == 3
    task = from_file(tmp_path / "whole.csv", task="regression")
    assert task.classes is None
    assert set(task.train.y.tolist()) == {0.0, 1.0, 2.0}
    (tmp_path / "words.csv").write_text("label,s0\na,1\nb,2\na,3\nb,4\n")
    with pytest.raises(ValueError, match="words a, b"):
        from_file(tmp_path / "words.csv", task="regression")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_large_offset_is_scaled_away_before_float32(tmp_path: Path, suffix: str) -> None:
    wave, file = 1e9 + np.sin(np.arange(200) / 3), tmp_path / f"one.{suffix}"
    if suffix == "csv":  # the channel has a name that answers have in other tables
        file.write_text("time,y\n" + "".join(f"{i},{value!r}\n" for i, value in enumerate(wave.tolist())))
    else:
        np.savez(file, x=wave[:, None])
    task = from_file(file, task="forecast", window=10, scale="standard")
    known = np.stack([wave[i : i + 10] for i in range(len(task.train))])
    known = (known - known.mean()) / known.std()
    assert np.allclose(task.train.x[..., 0].numpy(), known, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "forecast"}, "needs a window"),
        ({"task": "forecast", "window": 0}, "at least 1"),
        ({"task": "forecast", "window": 190}, "fits into"),
        ({"task": "forecast", "window": 5, "target": "c"}, "channel 'c'"),
        ({"task": "forecast", "window": 5, "label": "b"}, "label is of no use to a forecast"),
        ({"window": 5}, "for task='forecast'"),
        ({"task": "guess"}, "task must be"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    series(tmp_path / "one.csv")
    with pytest.raises(ValueError, match=message):
        from_file(tmp_path / "one.csv", **options)  # type: ignore[arg-type]


def test_a_row_a_step_needs_times(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("load\n" + "\n".join(f"{i}.5" for i in range(60)))
    with pytest.raises(ValueError, match=r"longest series has 1 steps.*it has a column time"):
        from_file(tmp_path / "one.csv", task="forecast", window=10)


def test_more_steps_than_a_window_are_noted(tmp_path: Path) -> None:
    series(tmp_path / "one.csv")
    task = from_file(tmp_path / "one.csv", task="forecast", window=10)
    assert task.preprocess is not None
    assert "200 steps, read as a whole; in training 10" in read_like(tmp_path / "one.csv", task.preprocess).notes[-1]
    series(tmp_path / "short.csv", 10)
    assert not read_like(tmp_path / "short.csv", task.preprocess).notes


def test_targets_far_from_zero_are_learnt(tmp_path: Path) -> None:
    """From the mean on, which is wrong by their variance; zero is wrong by five hundred times that."""
    wave = 50_000 + 3_000 * np.sin(np.arange(300) / 4) + np.random.default_rng(0).normal(size=300)
    np.savez(tmp_path / "one.npz", x=wave[:, None])
    options = (("task", "forecast"), ("window", 12), ("scale", "standard"))
    choice = TaskChoice("one", options, file=str(tmp_path / "one.npz"))
    head = RegressionConfig(1, "last")
    model = ModelConfig(ChannelsConfig(1), ResidualConfig(S4DConfig(8), mixer="linear"), head, 8, 1)
    cell = Cell("far", ("one",), model, choice, budget=Budget(epochs=1, batch_size=64, lr=1e-2), analyse=False)
    error = -run_cell(cell, tmp_path / "run")["training"]["summary"]["best"]["test_clean"]
    assert error < 2 * np.var(wave)


def test_from_a_csv_to_an_attack_and_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series(tmp_path / "one.csv")
    words = ["--data", str(tmp_path / "one.csv"), "--task", "forecast", "--window", "12", "--target", "a"]
    train = ["run", "train", *words, "--certified", "--width", "8", "--layers", "1", "--epochs", "2"]
    assert cli.main([*train, "--no-report", "--out", str(tmp_path / "runs")]) == 0
    run = str(next((tmp_path / "runs").rglob("record.json")).parent)
    capsys.readouterr()
    limits = ["--samples", "10", "--norm", "l2", "--eps", "0.1", "--tolerance", "0.5"]
    assert cli.main(["attack", run, *limits, "--preset", "fast"]) == 0
    output = capsys.readouterr().out
    assert "tolerance 0.5" in output
    assert "within" in output
    assert cli.main(["certify", run, *limits, "--preset", "none"]) == 0
    output = capsys.readouterr().out
    assert "outputs move by at most" in output
    assert "certified within 0.5" in output
    assert cli.main(["predict", run, str(tmp_path / "one.csv")]) == 0
