"""`resolvent run train --certified` on one's own padded file: the model, its certificate in the record, its curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent import cli
from resolvent.analysis import certified_gain, certify
from resolvent.commands.run.train import train_cell
from resolvent.commands.run.train_options import DataOptions, ModelOptions, TrainingOptions
from resolvent.experiments.cell import TaskChoice
from resolvent.experiments.recipes.bounded import bounded_model
from resolvent.experiments.tasks import open_task
from resolvent.models import Model, load_model
from resolvent.models.parts import last_weight


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slow and quick waves in two channels, 6 to 14 steps, padding filled with what must not count."""
    draw = np.random.default_rng(0)
    n, l = 100, 14
    y, lengths = draw.integers(0, 2, n), draw.integers(6, l + 1, n)
    t = np.arange(l)
    wave = np.sin((0.4 + 1.1 * y)[:, None] * t + draw.uniform(0, 6, (n, 1)))
    x = np.stack([wave, 0.3 * wave], -1) + 0.05 * draw.normal(size=(n, l, 2))
    x[t[None] >= lengths[:, None]] = 50.0
    path = tmp_path_factory.mktemp("own") / "waves.npz"
    np.savez(path, x=x.astype(np.float32), y=y, lengths=lengths)
    return path


@pytest.fixture(scope="module")
def record(padded: Path) -> Path:
    out = padded.parent / "runs"
    call = ["run", "train", "--data", str(padded), "--certified", "--gamma", "4", "--epochs", "6", "--width", "8"]
    assert cli.main([*call, "--layers", "1", "--lr", "0.01", "--out", str(out)]) == 0
    return out / "train" / "waves-l2ru-certified-standard" / "seed-0"


def test_the_record_holds_a_certificate_below_the_attack(record: Path) -> None:
    held = json.loads((record / "record.json").read_text())["certificate"]
    assert held["gain"] <= 4 * (1 + 1e-5)
    curve = held["curve"]
    assert len(curve) >= 3
    assert 0 < curve[0]["radius"] < curve[-1]["radius"]
    assert curve[0]["certified"] > 0
    for point in curve:
        assert point["certified"] <= point["attacked"] <= held["clean"]
    page = (record.parents[1] / "report.html").read_text()
    assert "certified" in page
    assert "radius, L2" in page


def test_it_is_the_certificate_of_the_model_with_lengths(record: Path, padded: Path) -> None:
    """Certified samples are right and stay so at random places on the sphere of their radius."""
    task = open_task(TaskChoice("waves", file=str(padded)))
    test, model = task.test.unpack(), load_model(record / "checkpoint" / "best").eval()
    assert isinstance(model, Model)
    assert test.lengths is not None
    gain = certified_gain(model.gain_parts(int(test.lengths.min())), head=last_weight(model.head))
    found = certify(model, test.x, test.y, gain, lengths=test.lengths)
    answers = model(test.x, test.lengths).argmax(-1)
    assert torch.equal(found.correct, answers == test.y)
    held = json.loads((record / "record.json").read_text())["certificate"]
    assert held["clean"] == pytest.approx(float((answers == test.y).double().mean()))
    sure = found.certified(0.0)
    assert bool(sure.any())
    inside = torch.arange(test.x.shape[1]) < test.lengths[:, None]
    for seed in range(20):
        noise = torch.randn(test.x.shape, generator=torch.Generator().manual_seed(seed)) * inside[..., None]
        noise *= (0.999 * found.radius / noise.flatten(1).norm(dim=1)).float()[:, None, None]
        assert torch.equal(model(test.x + noise, test.lengths).argmax(-1)[sure], test.y[sure])


def test_sizes_follow_the_data(padded: Path) -> None:
    task = open_task(TaskChoice("waves", file=str(padded)))
    config = bounded_model(task, "l2ru", None, 16, 2)
    assert (config.d_model, config.layers, config.certified.memory) == (4, 2, 14)  # type: ignore[union-attr]
    assert config.certified.gain == 3.0  # type: ignore[union-attr]
    cell, _ = train_cell(DataOptions(str(padded)), ModelOptions("lru", certified=True), TrainingOptions())
    assert cell.tags[1] == "lru-certified"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--certified", "--layer", "s5"], "--certified builds a model of l2ru or lru layers, got --layer s5"),
        (["--certified", "--gamma", "0"], "--gamma, the Lipschitz bound of the model, must be positive"),
        (["--certified", "--gamma", "inf"], "must be positive and finite"),
        (["--gamma", "2"], "or --certified, or leave it out"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "train", *words, "--out", str(tmp_path / "runs"), "--no-report"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
