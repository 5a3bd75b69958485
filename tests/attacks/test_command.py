"""`resolvent attack`: a saved model and a stranger's class, data by name or file, mistakes in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from victims import STRANGER, Recurrent, labelled, sequences

from helpers import small_classifier
from resolvent import cli
from resolvent.data import load_task
from resolvent.models import S4DConfig, build_model, load_model, save_model
from resolvent.training import FitSettings, fit


def quick(*arguments: str) -> int:
    return cli.main(["attack", *arguments, "--preset", "fast", "--bounds", "0", "1"])


def test_a_strangers_class(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    status = quick(STRANGER, "--data", str(data), "--eps", "8/255", "--samples", "6", "--out", str(out))
    text = capsys.readouterr().out
    assert status == 0
    for word in ("robust accuracy", "apgd-ce", "square", "6 samples", "eps 8/255 (0.0313725)", "record.json"):
        assert word in text
    record = json.loads((out / "record.json").read_text())
    assert record["samples"] == 6
    assert record["threat"]["eps"] == pytest.approx(8 / 255)
    assert record["clean_accuracy"] == pytest.approx(4 / 6)


def test_one_logit_is_attacked_as_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_classifier(S4DConfig(), channels=1, classes=1)
    model, x = build_model(config), torch.rand(6, 9, 1)
    save_model(model, tmp_path)
    y = (model(x)[:, 0] > 0).long()
    y[0] = 1 - y[0]
    save_file({"x": x, "y": y}, tmp_path / "data.safetensors")
    out = tmp_path / "out"
    assert quick(str(tmp_path), "--data", str(tmp_path / "data.safetensors"), "--eps", "0.01", "--out", str(out)) == 0
    assert json.loads((out / "record.json").read_text())["clean_accuracy"] == pytest.approx(5 / 6)


def test_a_saved_model_on_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_classifier(S4DConfig(), channels=1, classes=10)
    save_model(build_model(config), tmp_path / "checkpoint")
    assert quick(str(tmp_path), "--samples", "2", "--eps", "0.01") == 0
    assert "2 samples" in capsys.readouterr().out


def trained(folder: Path) -> None:
    """A run of one epoch on a handful of digits, as `fit` leaves it."""
    task = load_task("digits")
    few = replace(task, **{n: part.select(torch.arange(40)) for n, part in task.splits().items()})
    config = small_classifier(S4DConfig(4), channels=1, classes=10)
    fit(build_model(config), few, settings=FitSettings(epochs=2, batch_size=20), folder=folder, save=save_model)


def test_a_training_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own task and its best weights unless told; others where they are asked for."""
    trained(tmp_path)
    found = {}
    for kept in ("best", "last"):
        out = tmp_path / f"attack-{kept}"
        assert quick(str(tmp_path), "--checkpoint", kept, "--samples", "3", "--eps", "0.01", "--out", str(out)) == 0
        found[kept] = json.loads((out / "record.json").read_text())
        same = load_model(tmp_path / "checkpoint" / kept).eval()
        with torch.no_grad():
            want = same(load_task("digits").test.x[:3]).argmax(1).tolist()
        assert [record["clean_prediction"] for record in found[kept]["records"]] == want
    assert quick(str(tmp_path), "--samples", "3", "--eps", "0.01", "--out", str(tmp_path / "attack-best")) == 0
    capsys.readouterr()
    assert cli.main(["attack", str(tmp_path), "--checkpoint", "best_by_test"]) == 2
    assert "no checkpoint 'best_by_test' yet, only 'best', 'last'" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "inside"
    assert cli.main(["attack", STRANGER, "--data", "missing.npz", "--out", str(out)]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_npz_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = sequences(4)
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=labelled(Recurrent(), x).numpy())
    assert quick(STRANGER, "--data", str(tmp_path / "d.npz")) == 0
    assert "4 samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        ([STRANGER, "--eps", "eight"], "--eps must be a number"),
        ([STRANGER, "--eps", "1/0"], "--eps must be a number"),
        ([STRANGER, "--eps=-0.1"], "eps"),
        ([STRANGER, "--preset", "standrad"], "did you mean 'standard'"),
        ([STRANGER, "--data", "digitz"], "digits"),
        ([STRANGER, "--data", "missing.npz"], "no file"),
        ([STRANGER, "--kwargs", '{"width": 3}'], "width"),
        ([STRANGER, "--samples", "0"], "samples"),
        ([STRANGER, "--device", "warp"], "--device"),
        (["torch.nn:ReLU"], "outputs"),
        ([str(Path(__file__).parent)], "model.safetensors"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["attack", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("resolvent attack: ")
    assert error.count("\n") == 1


def test_a_changed_configuration_is_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = (STRANGER, "--data", str(data), "--out", str(tmp_path / "out"))
    assert quick(*shared, "--eps", "0.01") == 0
    assert quick(*shared, "--eps", "0.02") == 2
    assert "threat.eps was 0.01" in capsys.readouterr().err


def test_the_file_must_hold_x_and_y(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"inputs": torch.zeros(1)}, tmp_path / "d.safetensors")
    assert cli.main(["attack", STRANGER, "--data", str(tmp_path / "d.safetensors")]) == 2
    assert "it has inputs" in capsys.readouterr().err


def test_numpys_float64_is_turned_into_the_models_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = sequences(3)
    np.savez(tmp_path / "d.npz", x=x.double().numpy(), y=labelled(Recurrent(), x).numpy())
    assert quick(STRANGER, "--data", str(tmp_path / "d.npz")) == 0
    assert "3 samples" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["d.npz", "d.safetensors"])
def test_a_file_that_is_none_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("nothing of the kind")
    assert cli.main(["attack", STRANGER, "--data", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"{name}: expected an archive of plain arrays" in error
    assert "pickle" not in error


def test_a_model_for_other_shapes_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 5), np.float32), y=np.zeros(2, np.int64))
    assert cli.main(["attack", "torch.nn:Linear", "--kwargs", '{"in_features": 3, "out_features": 4}', "--data",
                     str(tmp_path / "d.npz")]) == 2  # fmt: skip
    error = capsys.readouterr().err
    assert "does not take x of shape (2, 5)" in error
    assert error.count("\n") == 1
