"""One padded, scaled table with gaps and words as classes: trained, predicted, attacked and certified as one thing."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from weather import write_weather

import resolvent as rv
from resolvent import cli
from resolvent.analysis import certified_gain, certify
from resolvent.data.preparation.like import read_like
from resolvent.models.parts import last_weight


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weather")
    train = write_weather(place / "train.csv", 90, 0, noise=2.5)
    test = write_weather(place / "test.csv", 15, 1, noise=2.5)
    call = ["run", "train", "--data", str(train), "--test", str(test), "--label", "weather", "--missing", "ffill"]
    call += ["--scale", "standard", "--certified", "--gamma", "4", "--epochs", "4", "--width", "8", "--layers", "1"]
    assert cli.main([*call, "--lr", "0.02", "--out", str(place / "runs"), "--no-report"]) == 0
    return place


def run_of(place: Path) -> Path:
    return next((place / "runs" / "train").iterdir()) / "seed-0"


def test_predictions_are_those_that_the_run_was_measured_by(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(place)
    record = json.loads((run / "record.json").read_text())
    accuracy = record["training"]["summary"]["best"]["test_clean"]
    assert 0.5 < accuracy < 1.0  # neither chance nor without a mistake: a wrong preprocessing would show
    ready = rv.load(run)
    assert ready.score(place / "test.csv") == pytest.approx(accuracy)
    assert cli.main(["predict", str(run), str(place / "test.csv"), "--out", str(place / "out.csv")]) == 0
    assert f"accuracy {accuracy:.2%} ({round(accuracy * 15)} of 15)" in capsys.readouterr().out
    with (place / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ready.predict(place / "test.csv").tolist()
    shares = np.array([[float(row[f"p({name})"]) for name in ready.classes or ()] for row in rows])
    assert np.allclose(shares, ready.predict_proba(place / "test.csv"), atol=1e-8)
    assert np.mean([row["prediction"] == row["label"] for row in rows]) == pytest.approx(accuracy)
    assert [row["id"] for row in rows] == [f"station{i}" for i in range(15)]


def test_an_attack_on_the_raw_file_is_that_on_the_runs_own_data(place: Path) -> None:
    run, found = run_of(place), []
    for name, data in (("own", []), ("raw", ["--data", str(place / "test.csv")])):
        out = place / name
        assert cli.main(["attack", str(run), "--preset", "fast", "--eps", "0.1", "--out", str(out), *data]) == 0
        found.append(json.loads((out / "record.json").read_text()))
    assert found[0] == found[1]  # every sample and every number
    assert len(found[0]["records"]) == 15
    clean = json.loads((run / "record.json").read_text())["training"]["summary"]["best"]["test_clean"]
    assert found[1]["clean_accuracy"] == pytest.approx(clean)


def test_what_is_certified_is_right_and_stays_right_inside_its_radius(place: Path) -> None:
    ready = rv.load(run_of(place))
    model: Any = ready.model
    raw = read_like(place / "test.csv", ready.preprocess)
    x, y, lengths = ready.preprocess(raw.x, raw.lengths), raw.y, raw.lengths
    assert y is not None
    assert lengths is not None
    gain = certified_gain(model.gain_parts(int(lengths.min())), head=last_weight(model.head))
    radius = certify(model, x, y, gain, lengths=lengths).radius
    sure = radius > 0
    assert 5 < int(sure.sum()) < 15
    right = ready.predict(place / "test.csv") == np.array(ready.classes)[y.numpy()]
    assert right[sure.numpy()].all()
    threat = rv.Threat("l2", radius[sure].float() * 0.999)
    moved = rv.autoattack(model, x[sure], y[sure], threat, "fast", lengths=lengths[sure])
    assert bool(moved.robust.all())


def test_a_copied_checkpoint_is_whole(place: Path, tmp_path: Path) -> None:
    import shutil

    want = rv.load(run_of(place)).predict_proba(place / "test.csv")
    alone = shutil.copytree(run_of(place) / "checkpoint" / "best", tmp_path / "alone")
    assert np.array_equal(rv.load(alone).predict_proba(place / "test.csv"), want)
    saved = rv.load(alone).save(tmp_path / "saved")
    assert np.array_equal(rv.load(saved).predict_proba(place / "test.csv"), want)
    assert torch.equal(rv.load(saved).model.tower.entry.weight, rv.load(alone).model.tower.entry.weight)  # type: ignore[arg-type, union-attr]
