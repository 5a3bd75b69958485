"""Forecasting windows: values and parts against plain indexing, no answer seen in training, a run from a CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import resolvent as rv
from resolvent import cli
from resolvent.data import from_file
from resolvent.data.preparation.like import read_like
from resolvent.experiments import Budget, Cell, TaskChoice, run_cell
from resolvent.models import ChannelsConfig, ModelConfig, RegressionConfig, ResidualConfig, S4DConfig
from resolvent.predictor.samples import samples_of


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


def test_without_times_the_rows_of_a_series_are_its_steps(tmp_path: Path) -> None:
    """As with times, where no other reading is possible: a column is the target, or a row is no window."""
    series(tmp_path / "one.csv")
    timed = from_file(tmp_path / "one.csv", task="forecast", window=10, target="b")
    rows = [row.partition(",")[2] for row in (tmp_path / "one.csv").read_text().splitlines()]
    (tmp_path / "two.csv").write_text("\n".join(rows))
    for target in ("b", None):
        task = from_file(tmp_path / "two.csv", task="forecast", window=10, target=target)
        assert "no column of times: rows are steps in the order of the file" in task.notes
        assert (task.train.x == timed.train.x).all()
        assert (task.test.y[:, -1] == timed.test.y[:, 0]).all()
    assert task.preprocess is not None
    assert read_like(tmp_path / "two.csv", task.preprocess).x.shape == (1, 200, 2)
    several = [f"{'id' if not k else 'AB'[k % 2]},{row}" for k, row in enumerate(rows)]
    (tmp_path / "three.csv").write_text("\n".join(several))
    both = from_file(tmp_path / "three.csv", task="forecast", window=10, target="b")
    assert len(both.train) == 2 * (70 - 10)


def test_rows_that_may_be_series_themselves_are_not_taken_for_steps(tmp_path: Path) -> None:
    lines = ["t0,t1,t2", *(f"{i},{i + 1},{i + 2}" for i in range(60))]
    (tmp_path / "wide.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"longest series has 3 steps.*a column time, or the channel that --target"):
        from_file(tmp_path / "wide.csv", task="forecast", window=10)
    assert len(from_file(tmp_path / "wide.csv", task="forecast", window=1).train) == 60


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


def test_a_new_series_is_attacked_window_by_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its windows and targets against plain indexing; and the printed error is that of numpy."""
    series(tmp_path / "one.csv")
    words = ["--data", str(tmp_path / "one.csv"), "--task", "forecast", "--window", "12", "--horizon", "3"]
    train = ["run", "train", *words, "--target", "b", "--width", "4", "--layers", "1", "--epochs", "1"]
    assert cli.main([*train, "--scale", "standard", "--no-report", "--out", str(tmp_path / "runs")]) == 0
    run = next((tmp_path / "runs").rglob("record.json")).parent
    values = series(tmp_path / "new.csv", 40)
    found = samples_of(run, str(tmp_path / "new.csv"))
    ready = rv.load(run)
    assert np.allclose(found.y.numpy(), [values[i + 12 : i + 15, 1] for i in range(26)], atol=1e-6)
    assert np.allclose(found.x.numpy(), ready.preprocess(np.stack([values[i : i + 12] for i in range(26)])), atol=1e-5)
    assert not any("read as a whole" in note for note in found.notes)
    capsys.readouterr()
    assert cli.main(["attack", str(run), "--data", str(tmp_path / "new.csv"), "--preset", "fast", "--eps", "0"]) == 0
    apart = ready.model(found.x).detach().numpy() - found.y.numpy()
    assert f"{np.sqrt((apart**2).mean(1)).mean():.4g}"[:5] in capsys.readouterr().out
    series(tmp_path / "short.csv", 14)
    assert cli.main(["attack", str(run), "--data", str(tmp_path / "short.csv")]) == 2
    assert "a series of at least 15 steps" in capsys.readouterr().err


def test_the_error_of_several_values_is_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6, 1)).astype(np.float32), rng.normal(size=(20, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    block = ResidualConfig(S4DConfig(4))
    model = rv.build_model(ModelConfig(ChannelsConfig(1), block, RegressionConfig(3, "last"), 4, 1))
    task = from_file(tmp_path / "a.npz")
    rv.models.save_model(model, tmp_path / "m", task.preprocess)
    assert cli.main(["predict", str(tmp_path / "m"), str(tmp_path / "a.npz")]) == 0
    mean = ((rv.load(tmp_path / "m").predict(x) - y) ** 2).mean()
    assert f"mean squared error {mean:.6g}"[:25] in capsys.readouterr().out
    np.savez(tmp_path / "b.npz", x=x, y=y[:, :2])
    assert cli.main(["predict", str(tmp_path / "m"), str(tmp_path / "b.npz")]) == 2
    assert "expected targets of shape (20, 3), got (20, 2)" in capsys.readouterr().err


def test_a_bound_that_targets_exceed_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound of a certified model is in the units of its outputs: with 3 it cannot follow a load of hundreds."""
    load = 500 + 50 * np.sin(np.arange(200) / 5)
    (tmp_path / "a.csv").write_text("time,load\n" + "".join(f"{i},{v:.3f}\n" for i, v in enumerate(load)))
    words = ["--data", str(tmp_path / "a.csv"), "--task", "forecast", "--window", "8", "--layers", "1", "--width", "4"]
    common = ["run", "train", *words, "--certified", "--dry-run", "--scale", "standard"]
    assert cli.main(common) == 0
    spread = np.std(load[8:140], ddof=1)
    assert f"deviation is {spread:.3g}, and outputs move by at most 3" in capsys.readouterr().out
    assert cli.main([*common, "--gamma", "60"]) == 0
    assert "outputs move by at most" not in capsys.readouterr().out
