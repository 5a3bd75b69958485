"""Corruptions: each does what its line says, against numpy; padding, bounds, batches; errors counted; the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from victims import Recurrent, labelled, sequences

from helpers import small_classifier
from resolvent import cli
from resolvent.attacks import CorruptionReport, CorruptionSettings, Draws, evaluate_corruptions
from resolvent.attacks.corruptions.corruption import CORRUPTIONS, SEVERITIES, Scene
from resolvent.attacks.corruptions.evaluate import corrupt
from resolvent.models import S4DConfig, build_model, save_model


def scene(n: int = 200, l: int = 40, c: int = 3, lengths: Tensor | None = None) -> Scene:
    x = torch.randn(n, l, c, generator=torch.Generator().manual_seed(0)).cumsum(1)
    own = torch.full((n,), l) if lengths is None else lengths
    return Scene(x, own, torch.tensor([0.5, -1.0, 2.0])[:c], torch.tensor([1.0, 2.0, 0.5])[:c], Draws.of(x))


BY_NAME = {each.name: each for each in CORRUPTIONS}


@pytest.mark.parametrize("each", CORRUPTIONS, ids=lambda c: c.name)
def test_more_severe_is_further_away(each: object) -> None:
    s = scene()
    sizes = each.sizes  # type: ignore[attr-defined]
    assert len(sizes) == len(SEVERITIES)
    far = [float((corrupt(s, each, size) - s.x).square().mean().sqrt()) for size in sizes]  # type: ignore[arg-type]
    assert far == sorted(far)
    assert far[0] > 0


def test_what_each_of_them_does() -> None:
    s = scene()
    x, dev = s.x.double().numpy(), s.deviation.numpy()
    noise = (corrupt(s, BY_NAME["noise"], 0.4).numpy() - x) / dev
    assert noise.std() == pytest.approx(0.4, rel=0.02)
    drift = (corrupt(s, BY_NAME["drift"], 1.5).numpy() - x) / dev
    assert np.allclose(np.abs(drift), 1.5 * np.arange(40)[:, None] / 39, atol=1e-4)
    tone = (corrupt(s, BY_NAME["tone"], 0.6).numpy() - x) / dev
    assert np.abs(tone).max() <= 0.6 + 1e-4
    power = np.abs(np.fft.rfft(tone, axis=1)) ** 2
    assert (power.max(1) / power.sum(1)).min() > 0.3  # one line, spread over two or three places of the grid
    clipped = corrupt(s, BY_NAME["clipping"], 0.1).double().numpy()
    low, high = np.quantile(x, 0.1, axis=1, keepdims=True), np.quantile(x, 0.9, axis=1, keepdims=True)
    assert np.allclose(clipped, np.clip(x, low, high), atol=1e-4)
    silent = (corrupt(s, BY_NAME["channels"], 0.5).numpy() == s.mean.numpy()).all(1).sum(1)
    assert set(silent.tolist()) == {2}
    gone = (corrupt(s, BY_NAME["spans"], 0.3).numpy() == s.mean.numpy()).all(2)
    assert set(gone.sum(1).tolist()) == {12}
    assert all((np.diff(np.flatnonzero(row)) == 1).all() for row in gone)


def test_time_is_read_elsewhere() -> None:
    """On x = the time itself what is read is the time that it is read at."""
    s = scene(c=1)
    s = Scene(s.times.expand(200, 40)[..., None].contiguous(), s.lengths, s.mean, s.deviation, s.draws)
    rate = corrupt(s, BY_NAME["rate"], 0.8)[..., 0].double().numpy()
    fast = np.minimum(np.arange(40) / 0.8, 39)
    kinds = [np.allclose(row, fast, atol=1e-4) or np.allclose(row, np.arange(40) * 0.8, atol=1e-4) for row in rate]
    assert all(kinds)
    jitter = corrupt(s, BY_NAME["jitter"], 1.0)[:, 5:-5, 0].numpy() - np.arange(5, 35)
    assert jitter.std() == pytest.approx(1.0, rel=0.05)
    warped = corrupt(s, BY_NAME["warping"], 0.2)[..., 0].numpy() - np.arange(40)
    assert np.abs(warped).max() <= 0.2 * 40
    assert np.allclose(warped[:, 0], 0)


@pytest.mark.parametrize("each", CORRUPTIONS, ids=lambda c: c.name)
def test_padding_bounds_and_neighbours(each: object) -> None:
    lengths = torch.randint(2, 41, (200,), generator=torch.Generator().manual_seed(1))
    s = scene(lengths=lengths)
    moved = corrupt(s, each, each.sizes[4], (-30.0, 30.0))  # type: ignore[arg-type, attr-defined]
    outside = torch.arange(40) >= lengths[:, None]
    assert torch.equal(moved[outside], s.x[outside])
    assert bool((moved.abs() <= torch.maximum(s.x.abs(), torch.tensor(30.0))).all())
    few = torch.arange(7, 12)
    part = Scene(s.x[few], lengths[few], s.mean, s.deviation, Draws.of(s.x).select(few))
    again = corrupt(part, each, each.sizes[4], (-30.0, 30.0))  # type: ignore[arg-type, attr-defined]
    assert torch.allclose(again, moved[few], atol=1e-6)


def test_errors_are_counted() -> None:
    model, x = Recurrent(), sequences(n=60, l=8)
    y = labelled(model, x, wrong=6)
    found = evaluate_corruptions(model, (x, y), bounds=(0.0, 1.0))
    assert found.clean == pytest.approx(0.1)
    assert set(found.errors) == set(BY_NAME)
    rows = np.array(list(found.errors.values()))
    assert found.mean_error == pytest.approx(rows.mean())
    assert found.by_severity == pytest.approx(tuple(rows.mean(0)))
    assert found.mean_error > found.clean
    assert found.relative_error(found) == pytest.approx(1.0)
    small = evaluate_corruptions(model, (x, y), settings=CorruptionSettings(batch_size=7, only=("noise",)))
    whole = evaluate_corruptions(model, (x, y), settings=CorruptionSettings(only=("noise",)))
    assert small == whole
    assert "channels" not in evaluate_corruptions(lambda u: model(u.expand(-1, -1, 3)), (x[..., :1], y)).errors
    model.eval()
    real = evaluate_corruptions(model, (x, model(x).detach()), settings=CorruptionSettings(only=("noise",)))
    assert real.regression
    assert list(real.errors["noise"]) == sorted(real.errors["noise"])


def test_what_is_refused() -> None:
    model = Recurrent()
    with pytest.raises(ValueError, match="real sequences"):
        evaluate_corruptions(model, (torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)))
    with pytest.raises(ValueError, match="known corruptions"):
        CorruptionSettings(only=("fog",))
    perfect = CorruptionReport(0.0, {"noise": (0.0,) * 5}, 3, False)
    with pytest.raises(ValueError, match="no error under noise"):
        perfect.relative_error(perfect)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    config = small_classifier(S4DConfig(4), channels=1, classes=10)
    save_model(build_model(config), tmp_path / "run")
    words = ["corrupt", str(tmp_path / "run"), "--samples", "20"]
    assert cli.main(words) == 0
    assert "mean corruption error" in capsys.readouterr().out
    held = json.loads((tmp_path / "run" / "corruptions.json").read_text())
    assert held["samples"] == 20
    assert cli.main([*words, "--baseline", str(tmp_path / "run"), "--only", "noise"]) == 2  # another set of corruptions
    assert cli.main([*words, "--baseline", str(tmp_path / "run")]) == 0
    assert ": 1" in capsys.readouterr().out
    assert cli.main(["corrupt", str(tmp_path / "none")]) == 2
    assert cli.main([*words, "--only", "fog"]) == 2


def test_half_types_are_corrupted_as_float32() -> None:
    x = torch.randn(12, 20, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    y, seen = torch.zeros(12, dtype=torch.int64), []

    def f(u: Tensor) -> Tensor:
        seen.append(u.dtype)
        return torch.stack([u.float().mean((1, 2)), -u.float().mean((1, 2))], 1)

    half = evaluate_corruptions(f, (x, y))
    assert set(seen) == {torch.bfloat16}
    assert half.mean_error == pytest.approx(evaluate_corruptions(f, (x.float(), y)).mean_error, abs=0.05)


def test_flags_of_gaps_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    x, flag = torch.randn(6, 20, 2, generator=generator), (torch.rand(6, 20, 1, generator=generator) < 0.2).float()
    both, seen = torch.cat([x, flag], 2), []

    def f(u: Tensor) -> Tensor:
        seen.append(u)
        return torch.stack([u.mean((1, 2)), -u.mean((1, 2))], 1)

    y, bounds = torch.zeros(6, dtype=torch.int64), ((-4.0, -4.0, 0.0), (4.0, 4.0, 1.0))
    evaluate_corruptions(f, (both, y), bounds=bounds, flags=1)
    assert all(torch.equal(u[..., 2:], flag) for u in seen)
    assert sum(not torch.equal(u[..., :2], x) for u in seen) > 40
    with pytest.raises(ValueError, match="nothing is left"):
        evaluate_corruptions(f, (both, y), flags=3)


def test_the_report_shows_it_beside_attacks() -> None:
    from resolvent.report.figures.corruption import (
        COLOURS,
        corruption_findings,
        robustness_bars,
        robustness_figures,
        threat_labels,
    )

    errors = {"noise": [0.1, 0.2, 0.3, 0.4, 0.5]}
    record = {
        "task": {"name": "digits"},
        "corruptions": {"clean": 0.1, "errors": errors, "mean_error": 0.3, "by_severity": errors["noise"],
                        "regression": False},
        "attacks": {
            "a": {"checkpoint": "best", "eps": 0.1, "norm": "linf", "accuracy": 0.4, "pgd10": {"accuracy": 0.5}},
        },
        "certificate": {"curve": [{"radius": 0.1, "certified": 0.2}]},
    }  # fmt: skip
    ((name, bars),) = robustness_bars([("s4", record)])
    assert name == "s4"
    assert bars == pytest.approx({"clean": 90, "corrupted": 70, "PGD-10": 50, "AutoAttack": 40, "certified": 20})
    assert corruption_findings([("s4", record)])[0]["table"]["rows"][0][:3] == ["s4", 10.0, 30.0]
    drawn = robustness_figures([("s4", record)])[0][1]
    assert "svg" in drawn
    assert len(set(COLOURS.values())) == len(bars)  # five kinds, five colours
    labels = threat_labels([("s4", record)])
    assert labels["certified"] == "certified, L2 0.1"
    assert labels["AutoAttack"] == "AutoAttack, Linf 0.1"
    other = record | {"certificate": {"curve": [{"radius": 0.5, "certified": 0.2}]}}
    assert threat_labels([("s4", record), ("s5", other)])["certified"] == "certified"
