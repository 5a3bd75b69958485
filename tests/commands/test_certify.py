"""`resolvent certify` on tiny saved models: what it prints, which bound gave the number, what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from resolvent import cli
from resolvent.analysis import certified_gain, certify
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    Model,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    TokensConfig,
    build_model,
    load_model,
    presets,
    save_model,
)
from resolvent.models.parts import last_weight

SMALL = {"d_model": 2, "layers": 1, "hidden": 6, "memory": 4}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A certified model, and samples that it answers right with some margin."""
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier(1, 3, gain=2.0, **SMALL)).eval()
    x = torch.rand(12, 6, 1)
    y = model(x).argmax(-1)
    return save_model(model, tmp_path / "model"), samples(tmp_path, x, y)


def samples(folder: Path, x: torch.Tensor, y: torch.Tensor) -> Path:
    from safetensors.torch import save_file

    save_file({"x": x, "y": y}, folder / "data.safetensors")
    return folder / "data.safetensors"


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    status = cli.main(["certify", *map(str, words)])
    output = capsys.readouterr()
    return status, " ".join((output.out + output.err).split())


def loaded(folder: Path) -> Model:
    from resolvent.models import load_model

    model = load_model(folder)
    assert isinstance(model, Model)
    return model.eval()


def test_several_sizes_make_a_curve(
    saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = saved
    out = tmp_path / "curve.json"
    status, output = ask(capsys, folder, "--norm", "l2", "--eps", "1/100", "0", "0.3", "--data", data, "--json", out)
    assert status == 0
    assert "eps certified attacked" in output
    assert "n 12, no attack; standard errors" in output  # of the smallest, 0
    assert " ± " in output.split("attacked")[-1]
    curve = json.loads(out.read_text())["curve"]
    assert [point["eps"] for point in curve] == [0.0, 0.01, 0.3]
    certified, attacked = ([point[name] for point in curve[1:]] for name in ("certified", "attacked"))
    assert certified == sorted(certified, reverse=True)
    assert attacked == sorted(attacked, reverse=True)
    assert all(low <= high for low, high in zip(certified, attacked, strict=True))
    ask(capsys, folder, "--norm", "l2", "--eps", "0.3", "--data", data, "--json", tmp_path / "one.json")
    alone = json.loads((tmp_path / "one.json").read_text())["sandwich"]
    assert alone["certified"] == certified[1]
    assert alone["attacked"] >= attacked[1]  # a sample that a smaller ball has broken stays broken


def test_l2_between_certificate_and_attack(
    saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = saved
    out = tmp_path / "record.json"
    status, output = ask(capsys, folder, "--norm", "l2", "--eps", "1/100", "--data", data, "--json", out)
    assert status == 0
    assert "<= robust accuracy <=" in output
    assert "pair by pair over the last map" in output
    record = json.loads(out.read_text())
    assert record["status"] == "certified"
    assert record["sandwich"]["certified"] <= record["sandwich"]["attacked"] <= record["sandwich"]["clean"]
    assert max(record["certificate"]["radius"]) > 0


def test_pairs_of_logits_certify_more_than_the_whole(saved: tuple[Path, Path], tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    folder, data = saved
    out = tmp_path / "record.json"
    ask(capsys, folder, "--data", data, "--preset", "none", "--json", out)
    found = torch.tensor(json.loads(out.read_text())["certificate"]["radius"], dtype=torch.float64)
    from safetensors.torch import load_file

    held, model = load_file(data), loaded(folder)
    plain = certify(model, held["x"], held["y"], certified_gain(model.gain_parts(6)))
    paired = certify(model, held["x"], held["y"], certified_gain(model.gain_parts(6), head=last_weight(model.head)))
    assert torch.equal(found, paired.radius)
    assert bool((paired.radius >= plain.radius * (1 - 1e-9)).all())


def test_linf_takes_the_better_bound(saved: tuple[Path, Path], tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    folder, data = saved
    out = tmp_path / "record.json"
    status, output = ask(capsys, folder, "--norm", "linf", "--eps", 0.01, "--data", data, "--json", out)
    assert status == 0
    assert "by the Lipschitz constant" in output
    assert "by linear bounds over the box" in output
    record = json.loads(out.read_text())
    radius, linear = torch.tensor(record["certificate"]["radius"]), torch.tensor(record["linear"]["samples"])
    either = (linear | (radius >= 0.01)).double().mean()
    assert record["sandwich"]["certified"] == pytest.approx(float(either))
    assert record["linear"]["certified"] >= float((radius >= 0.01).double().mean())


def test_linf_of_a_model_without_stages_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = presets.l2ru_classifier(1, 3, **SMALL)
    block = dataclasses.replace(config.block, sigma="gate")
    folder = save_model(build_model(dataclasses.replace(config, block=block)), tmp_path / "gate")
    data = samples(tmp_path, torch.rand(4, 6, 1), torch.tensor([0, 1, 2, 0]))
    status, output = ask(capsys, folder, "--norm", "linf", "--eps", 0.01, "--data", data, "--preset", "none")
    assert status == 0
    assert "by linear bounds over the box: stages_of: tower.body.blocks.0.sigma (Gate) has no bound" in output


def test_a_model_without_a_bound_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelConfig(ChannelsConfig(1), ResidualConfig(S4DConfig(4)), ClassifierConfig(3), 4, 1)
    folder = save_model(build_model(model), tmp_path / "plain")
    data = samples(tmp_path, torch.rand(4, 6, 1), torch.tensor([0, 1, 2, 0]))
    for norm in ("l2", "linf"):
        status, output = ask(capsys, folder, "--norm", norm, "--data", data)
        assert status == 1
        assert "tower.body.blocks.0.norm (norm): LayerNorm divides by" in output
        assert "certified <=" not in output
    status, output = ask(capsys, folder, "--data", data, "--smoothing", 0.5, "--noise-samples", 50, "--eps", 0.1)
    assert status == 1
    assert "certified within 0.1 in L2" in output


def test_weights_that_are_not_numbers_are_refused(saved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = saved
    model = load_model(folder)
    with torch.no_grad():
        model.head.out.weight[0, 0] = float("nan")
    save_model(model, folder)
    status, output = ask(capsys, folder, "--data", data)
    assert status == 2
    assert "head.out.weight holds NaN or infinity, so nothing is certified" in output


def test_weights_that_do_not_verify_are_refused(saved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = saved
    path = folder / "model.safetensors"
    held = bytearray(path.read_bytes())
    held[-3] ^= 1
    path.write_bytes(held)
    status, output = ask(capsys, folder, "--data", data)
    assert status == 2
    assert "is damaged: its tensors are not those that were saved" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eps", "-1"], "--eps must not be negative"),
        (["--eps", "much"], "--eps must be a number"),
        (["--preset", "fats"], "did you mean 'fast'"),
        (["--data", "nowhere.npz"], "there is no file 'nowhere.npz'"),
        (["--norm", "linf", "--smoothing", "0.1"], "smoothing with normal noise certifies l2"),
        (["--smoothing", "-0.1"], "sigma must be positive"),
        (["--samples", "-1"], "--samples must be at least 1, got -1"),
        (["--samples", "0"], "--samples must be at least 1, got 0"),
    ],
)
def test_bad_usage(
    saved: tuple[Path, Path], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = saved
    given = words if "--data" in words else [*words, "--data", str(data)]
    status, output = ask(capsys, folder, *given)
    assert status == 2
    assert message in output


def test_no_folder_and_models_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output = ask(capsys, tmp_path / "nowhere")
    assert status == 2
    assert "there is no folder" in output
    status, output = ask(capsys, tmp_path)
    assert status == 2
    assert "no model.safetensors" in output
    tokens = ModelConfig(TokensConfig(5), ResidualConfig(S4DConfig(4)), ClassifierConfig(3), 4, 1)
    status, output = ask(capsys, save_model(build_model(tokens), tmp_path / "tokens"))
    assert status == 2
    assert "reads tokens, which have no distance" in output


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_padded_samples_are_certified_as_the_model_answers_them(
    norm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No certified sample is misclassified by model(x, lengths), or broken by an attack within eps."""
    from safetensors.torch import save_file

    from resolvent.attacks import PGD, Threat

    torch.manual_seed(1)
    model = build_model(presets.l2ru_classifier(2, 3, gain=2.0, **SMALL)).eval()
    lengths = torch.randint(2, 10, (24,))
    x = torch.randn(24, 9, 2)
    x[torch.arange(9) >= lengths[:, None]] = 7.0
    y = model(x, lengths).argmax(-1)
    y[::5] = (y[::5] + 1) % 3
    assert not torch.equal(model(x).argmax(-1), model(x, lengths).argmax(-1))
    save_file({"x": x, "y": y, "lengths": lengths}, tmp_path / "padded.safetensors")
    folder, out = save_model(model, tmp_path / "model"), tmp_path / "record.json"
    eps = 0.02 if norm == "l2" else 0.004
    words = [folder, "--norm", norm, "--eps", eps, "--data", tmp_path / "padded.safetensors", "--json", out]
    status, output = ask(capsys, *words, *(["--smoothing", 0.3, "--noise-samples", 40] if norm == "l2" else []))
    assert status == 0, output
    record = json.loads(out.read_text())
    right = model(x, lengths).argmax(-1) == y
    radius = torch.tensor(record["certificate"]["radius"], dtype=torch.float64)
    sure = (radius >= eps) & torch.tensor(record["certificate"]["correct"])
    if norm == "linf":
        sure |= torch.tensor(record["linear"]["samples"])
    assert 0 < int(sure.sum()) < 24
    assert record["sandwich"]["certified"] == pytest.approx(float(sure.double().mean()))
    assert record["sandwich"]["clean"] == pytest.approx(float(right.double().mean()))
    assert bool(right[sure].all())
    moved = PGD(steps=100)(model, x, y, Threat(norm, eps), lengths=lengths).x_adv
    assert torch.equal(model(moved, lengths).argmax(-1)[sure], y[sure])


def test_a_model_in_float64(saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(loaded(saved[0]).double(), tmp_path / "wide")
    for norm in ("l2", "linf"):
        status, output = ask(capsys, folder, "--norm", norm, "--eps", 0.01, "--data", saved[1], "--preset", "none")
        assert status == 0, output
        assert "<= robust accuracy <=" in output
