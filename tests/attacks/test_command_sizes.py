"""`resolvent attack`: sizes for each channel and in raw units, curves, a time limit, weights of somebody's class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from victims import STRANGER, sequences

from helpers import small_classifier
from resolvent import cli
from resolvent.attacks import Threat, autoattack
from resolvent.data.preparation.keep import save_preprocess
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.models import S4DConfig, build_model, save_model


def attack(*words: str) -> int:
    return cli.main(["attack", *words, "--preset", "fast"])


def test_several_sizes_make_a_curve(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, words = tmp_path / "out", ("--data", str(data), "--bounds", "0", "1")
    assert attack(STRANGER, "--eps", "16/255", "1/255", "4/255", *words, "--out", str(out)) == 0
    text = capsys.readouterr().out
    for word in ("AutoAttack fast", "linf", "8 samples", "1/255", "4/255", "standard error", "clean accuracy 75.00 %"):
        assert word in text
    curve = json.loads((out / "record.json").read_text())["curve"]
    assert [point["eps"] for point in curve] == [1 / 255, 4 / 255, 16 / 255]
    accuracies = [point["accuracy"] for point in curve]
    assert accuracies == sorted(accuracies, reverse=True)
    assert attack(STRANGER, "--eps", "4/255", *words, "--out", str(tmp_path / "one")) == 0
    assert json.loads((tmp_path / "one" / "record.json").read_text())["accuracy"] == accuracies[1]


def scaled_run(folder: Path) -> tuple[nn.Module, np.ndarray[Any, Any], torch.Tensor, Preprocess]:
    """A model of three channels that a file in other units is scaled for."""
    torch.manual_seed(0)
    config = small_classifier(S4DConfig(), channels=3, classes=3, d_model=8)
    model = build_model(config).eval()
    raw = np.random.default_rng(0).normal(size=(10, 9, 3)) * [10.0, 0.1, 2.0] + [100.0, 0.0, -5.0]
    learned = Preprocess(
        inputs=3,
        classes=3,
        scale="standard",
        centre=(100.0, 0.0, -5.0),
        width=(10.0, 0.1, 2.0),
        fill=(0.0,) * 3,
        low=(-4.0,) * 3,
        high=(4.0,) * 3,
        bounds=(-4.0, 4.0),
        length=9,
    )
    y = model(learned(torch.tensor(raw, dtype=torch.float32))).argmax(1)
    save_model(model, folder)
    save_preprocess(learned, folder)
    np.savez(folder / "new.npz", x=raw.astype(np.float32), y=y.numpy())
    return model, raw, y, learned


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_raw_sizes_and_bounds_go_through_the_saved_scaling(norm: Any, tmp_path: Path) -> None:
    model, raw, y, learned = scaled_run(tmp_path)
    words = (str(tmp_path), "--data", str(tmp_path / "new.npz"), "--norm", norm)
    bounds = ("--bounds-raw", "50,-1,-20", "150,1,inf")
    assert attack(*words, "--eps-raw", "5,0.02,0.5", *bounds, "--out", str(tmp_path / "raw")) == 0
    record = json.loads((tmp_path / "raw" / "record.json").read_text())
    assert record["threat"]["eps"] == pytest.approx([0.5, 0.2, 0.25])
    assert record["threat"]["bounds"] == [pytest.approx([-5.0, -10.0, -7.5]), pytest.approx([5.0, 10.0, np.inf])]
    x = learned(torch.tensor(raw, dtype=torch.float32))
    threat = Threat(norm, (0.5, 0.2, 0.25), ((-5.0, -10.0, -7.5), (5.0, 10.0, np.inf)))
    assert record["accuracy"] == autoattack(model, x, y, threat, "fast", batch_size=256).accuracy
    assert attack(*words, "--eps-raw", "5", "--out", str(tmp_path / "one")) == 0
    assert json.loads((tmp_path / "one" / "record.json").read_text())["threat"]["eps"] == [0.5, 50.0, 2.5]
    assert attack(*words, "--eps", "0.5,0.2,0.25", *bounds, "--out", str(tmp_path / "own")) == 0
    assert json.loads((tmp_path / "own" / "record.json").read_text())["accuracy"] == record["accuracy"]


HOSTILE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--eps", "1e400"), "--eps"),
    (("--eps", "1e999999999"), "--eps"),
    (("--eps", "nan"), "--eps"),
    (("--eps", "inf"), "--eps"),
    (("--eps", "-0.1"), "--eps"),
    (("--eps", "1/0"), "--eps"),
    (("--eps",), "--eps"),
    (("--eps", "0.1,,0.2"), "--eps"),
    (("--eps", "0.1,0.2"), "3 channels"),
    (("--eps", "0.1,0.2,0.3", "0.2,0.1,0.3"), "neither ball"),
    (("--eps-raw", "0.1,x"), "--eps-raw"),
    (("--eps", "0.1", "--eps-raw", "0.1"), "one of them"),
    (("--samples", "-1"), "samples"),
    (("--samples", "0"), "samples"),
    (("--batch-size", "0"), "batch_size"),
    (("--batch-size", "-3"), "batch_size"),
    (("--bounds", "1", "0"), "--bounds"),
    (("--bounds", "nan", "1"), "--bounds"),
    (("--bounds", "0,0,0", "1,1"), "--bounds"),
    (("--bounds-raw", "0,2,0", "1,1,1"), "--bounds-raw"),
    (("--limit", "0"), "limit"),
    (("--limit", "-5"), "limit"),
    (("--limit", "nan"), "limit"),
    (("--seed", "-1"), "seed"),
    (("--weights", "nosuch.pt"), "--weights"),
)


@pytest.mark.parametrize(("words", "says"), HOSTILE, ids=[" ".join(words) for words, _ in HOSTILE])
def test_hostile_options_are_one_line(
    words: tuple[str, ...], says: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attack(STRANGER, *words, "--data", str(data)) == 2
    output = capsys.readouterr().err.strip()
    assert says in output
    assert len(output.splitlines()) == 1
    assert "Traceback" not in output


def test_a_limit_tells_what_is_undecided(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        STRANGER,
        "--data",
        str(data),
        "--eps",
        "2/255",
        "8/255",
        "--bounds",
        "0",
        "1",
        "--out",
        str(tmp_path / "o"),
    )
    assert attack(*words, "--limit", "1e-9") == 0
    text = capsys.readouterr().out
    assert "0.00 to 75.00 %   6 samples undecided" in text
    assert "the same command resumes" in text
    assert attack(*words) == 0
    assert "undecided" not in capsys.readouterr().out


FOREIGN = """
import torch
from torch import nn

print("a module that prints when it is imported")


class Reader(nn.Module):
    def __init__(self, classes=4, hidden=5):
        super().__init__()
        self.gru = nn.GRU(3, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


class Picky(nn.Module):
    def __init__(self):
        raise KeyError("no such thing")


class Leaves(nn.Module):
    def __init__(self):
        raise SystemExit(7)
"""


@pytest.fixture
def foreign(tmp_path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    (tmp_path / "reader.py").write_text(FOREIGN)
    scope: dict[str, Any] = {}
    exec(FOREIGN, scope)
    torch.manual_seed(3)
    return f"{tmp_path / 'reader.py'}:Reader", scope["Reader"]().state_dict()


def test_weights_of_somebodys_class(
    foreign: tuple[str, dict[str, torch.Tensor]], tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, state = foreign
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "deep.pth")
    seen = set()
    for name in ("w.safetensors", "w.pt", "deep.pth"):
        assert attack(target, "--weights", str(tmp_path / name), "--data", str(data), "--eps", "0.1") == 0
        seen.add(capsys.readouterr().out.split("AutoAttack", 1)[1])
    assert len(seen) == 1
    scope: dict[str, Any] = {}
    exec(FOREIGN, scope)
    from safetensors.torch import load_file

    held, model = load_file(data), scope["Reader"]()
    model.load_state_dict(state)
    right = float((model(held["x"]).argmax(1) == held["y"]).double().mean())
    assert f"{100 * right:6.2f} %" in seen.pop()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/resolvent-was-here"),))


def test_weights_that_do_not_fit(
    foreign: tuple[str, dict[str, torch.Tensor]], tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, state = foreign
    save_file(
        {k: v for k, v in state.items() if k != "out.bias"} | {"extra": torch.ones(1)}, tmp_path / "a.safetensors"
    )
    torch.save({"x": Evil()}, tmp_path / "b.pt")
    (tmp_path / "c.pt").write_bytes(b"not a file of tensors")
    torch.save([1, 2], tmp_path / "d.pt")
    (tmp_path / "e.safetensors").write_bytes(b"{}")
    save_file(state, tmp_path / "f.safetensors")
    for name, says in (
        ("a.safetensors", "lacks out.bias"),
        ("b.pt", "running code"),
        ("c.pt", "cannot be read"),
        ("d.pt", "state_dict"),
        ("e.safetensors", "cannot be read"),
    ):
        assert attack(target, "--weights", str(tmp_path / name), "--data", str(data)) == 2
        output = capsys.readouterr().err.strip()
        assert says in output
        assert len(output.splitlines()) == 1
    assert (
        attack(target, "--weights", str(tmp_path / "f.safetensors"), "--kwargs", '{"hidden": 6}', "--data", str(data))
        == 2
    )
    assert "another shape" in capsys.readouterr().err
    assert not Path("/tmp/resolvent-was-here").exists()
    for name in ("Picky", "Leaves"):
        assert attack(target.replace("Reader", name), "--data", str(data)) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_class_without_lengths_on_padded_data(
    foreign: tuple[str, dict[str, torch.Tensor]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = sequences(4)
    held = {"x": x, "y": torch.tensor([0, 1, 2, 3]), "lengths": torch.tensor([6, 3, 4, 6])}
    save_file(held, tmp_path / "padded.safetensors")
    assert attack(foreign[0], "--data", str(tmp_path / "padded.safetensors")) == 2
    assert "def forward(self, x, lengths=None)" in capsys.readouterr().err


def test_few_steps_and_a_band(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("--time-steps", "2"), "2 time steps"),
        (("--band", "0", "2.5", "--rate", "10"), "band 0 to 0.25 cycles a step"),
    ):
        assert attack(STRANGER, "--eps", "0.1", "--data", str(data), *words) == 0
        assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time-steps", "7"), "has 6"),
        (("--band", "0", "0.7"), "Nyquist"),
        (("--band", "0", "8", "--rate", "10"), "above Nyquist's 5 Hz"),
        (("--rate", "10"), "goes with --band"),
    ],
)
def test_a_shape_that_does_not_fit(data: Path, words: tuple[str, ...], message: str, capsys: Any) -> None:
    assert attack(STRANGER, "--eps", "0.1", "--data", str(data), *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
