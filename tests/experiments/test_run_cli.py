"""`resolvent run` and `report` called wrongly: one line that says what to do, status 2, and nothing is touched."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent import cli
from resolvent.commands.run.cells import of_worker
from resolvent.commands.run.options import Run
from resolvent.commands.run.train_options import DataOptions, TrainingOptions
from resolvent.disk import write_json
from resolvent.experiments import run_cell

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refused command says: one line."""
    assert cli.main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"resolvent {arguments[0]}: ")
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "did you mean 'quickstart'"),
        (["trian"], "did you mean 'train'"),
        (["train", "--block", "mambo"], "did you mean 'mamba'"),
        (["train", "--preset", "robustness-s4-cifar"], "did you mean 'robustness-s4-cifar10'"),
        (["train", "--init", "pdt"], "did you mean 'ptd'"),
        (["train", "--layer", "lru", "--init", "legs"], "take one of s4, s4d, dss, s5"),
        (["train", "--layer", "l2ru", "--bidirectional"], "take one of s4, s4d"),
        (["train", "--block", "mamba", "--layer", "s5"], "leave --layer s5 out"),
        (["train", "--layer", "mamba", "--block", "mlp"], "leave --block mlp out"),
        (["train", "--preset", "lru-stack"], "answers with real values, and digits needs classes"),
        (["train", "--preset", "lra-s4-text"], "reads tokens, and digits has real values"),
        (["train", "--preset", "robustness-s4-mnist", "--init", "ptd"], "--init is part of the preset"),
        (["train", "--block", "attention", "--ads", "relu"], "no state-space layer to scale"),
        (["train", "--certified", "--ads", "relu"], "--ads has no place"),
        (["train", "--layer", "l2ru", "--gamma", "-1"], "--gamma, the gain of each layer"),
        (["train", "--beta", "3"], "--beta belongs to --objective trades"),
        (["train", "--objective", "trades", "--eps", "0.1", "--beta", "nan"], "--beta must be a finite number"),
        (["train", "--attack-steps", "3"], "--attack-steps belongs to"),
        (["train", "--class-weights", "1,2"], "--class-weights must be balanced, none, or 10 positive numbers"),
        (["train", "--class-weights", "balnced"], "--class-weights must be"),
        (["train", "--name", "../up"], "--name goes into a path"),
        (["quickstart", "--name", "mine"], "--name is for `resolvent run train`"),
        (["train", "--lr", "-1"], "--lr must be a finite number above 0, got -1"),
        (["train", "--lr", "nan"], "--lr must be a finite number"),
        (["train", "--epochs", "0"], "--epochs must be a whole number from 1"),
        (["train", "--batch-size", "0"], "--batch-size must be"),
        (["train", "--width", "0"], "--width must be"),
        (["train", "--width", "100000"], "--width must be"),
        (["train", "--layers", "-1"], "--layers must be"),
        (["train", "--seeds", "1" + 26 * "0"], "--seeds must be"),
        (["train", "--seeds", "-1"], "--seeds must be"),
        (["train", "--workers", "-3"], "--workers must be"),
        (["train", "--evaluate-every", "0"], "--evaluate-every must be"),
        (["train", "--device", "meta"], "--device 'meta' cannot be used"),
        (["quickstart", "--only", "s4,tradez"], "did you mean 'trades'"),
        (["quickstart", "--only", "s4,mamba"], "all at once"),
        (["train", "--layer", "s4x"], "did you mean 's4'"),
        (["train", "--data", "digitz"], "did you mean 'digits'"),
        (["train", "--data", "nowhere.npz"], "nowhere.npz' is not there"),
        (["train", "--missing", "zero"], "--missing is for a file of your own"),
        (["train", "--group", "who"], "--group is for a file of your own"),
        (["train", "--no-header"], "--no-header is for a file of your own"),
        (["train", "--eps", "8/0"], "--eps must be a number"),
        (["train", "--objective", "trades"], "trades needs eps"),
        (["train", "--only", "s4"], "--only chooses among the cells of a recipe"),
        (["train", "--size", "small"], "--size chooses among the cells of a recipe"),
        (["quickstart", "--data", "nosuch", "--epochs", "-3"], "--data is an option of `resolvent run train`"),
        (["quickstart", "--no-header"], "--no-header is an option of `resolvent run train`"),
        (["quickstart", "--epochs", "20"], "--epochs is an option of `resolvent run train`"),
        (["quickstart", "--device", "nowhere"], "--device 'nowhere'"),
        (["quickstart", "--device", "nowhere", "--dry-run"], "--device 'nowhere'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = said(capsys, "run", *arguments, "--out", str(tmp_path / "runs"), "--no-report")
    assert message in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("word", "got"), [("{}", "30 in 30"), ("x", "1 in 30")])
def test_answers_that_are_no_classes_are_refused(
    word: str, got: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,s0,s1\n" + "".join(f"{word.format(f'w{i}')},{i},1\n" for i in range(30)))
    error = said(capsys, "run", "train", "--data", str(path), "--out", str(tmp_path / "runs"))
    assert f"two or more classes, each of several samples, got {got} samples; --label" in error


def test_ones_own_table_is_described_and_its_options_reach_the_workers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [f"{'walk' if k % 2 else 'run'},{k},{'' if k == 3 else k + 1},{2 * k}" for k in range(40)]
    path = tmp_path / "my file (1).csv"
    path.write_text("kind,a,b,c\n" + "\n".join(rows))
    call = ["run", "train", "--data", str(path), "--label", "kind", "--dry-run"]
    assert "--missing" in said(capsys, *call)
    assert cli.main([*call, "--missing", "ffill", "--scale", "minmax"]) == 0
    text = capsys.readouterr().out
    for part in ("sequences of 3 steps, 1 channel -> 2 classes", "run, walk", "1 missing values filled by 'ffill'",
                 "scaled by 'minmax'", "train/my-file-1-s4d-standard/seed-0: ", "1 run, at most"):  # fmt: skip
        assert part in text, part
    source = DataOptions(str(path), "other.csv", "--kind", header=False, missing="flag", group="who")
    request = Run("train", source=source, training=TrainingOptions(eps="1/8", lr=1e-5), report=False)
    assert cli.parse(of_worker(request)) == request


@pytest.mark.parametrize("place", ["file", "file/deep"])
def test_a_place_that_cannot_be_written(place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "choose another --out" in said(capsys, "run", "quickstart", "--out", str(tmp_path / place), "--no-report")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network."""
    import resolvent.data.download as home

    def none(url: str, remote: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(home, "_retrieve", none)


@pytest.mark.usefixtures("lonely")
def test_a_data_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "file"))
    error = said(capsys, "run", "train", "--data", "mnist", "--out", str(tmp_path / "runs"), "--no-report")
    assert "set the environment variable RESOLVENT_DATA" in error


@pytest.mark.usefixtures("lonely")
def test_data_with_a_wrong_checksum(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resolvent.data.tasks.mnist import CHECKSUMS

    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name in CHECKSUMS:
        (tmp_path / "mnist" / name).write_bytes(b"not what it says")
    error = said(capsys, "run", "train", "--data", "mnist", "--out", str(tmp_path / "runs"), "--no-report")
    assert "is damaged (" in error
    assert f"expected {next(iter(CHECKSUMS.values()))}" in error
    assert (tmp_path / "mnist" / name).read_bytes() == b"not what it says"


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a file of one's own, three channels wide: no other task would fit."""
    place = tmp_path_factory.mktemp("own")
    x = torch.linspace(-1, 1, 40)[:, None, None] * torch.ones(40, 6, 3)
    names = np.array(["high", "low"])
    np.savez(place / "mine.npz", x=x.numpy(), y=(x[:, 0, 0] > 0).long().numpy(), class_names=names)
    call = ["run", "train", "--data", str(place / "mine.npz"), "--layer", "lru", "--epochs", "1", "--width", "4"]
    assert cli.main([*call, "--layers", "1", "--out", str(place / "runs"), "--no-report"]) == 0
    return place / "runs" / "train" / "mine-lru-standard" / "seed-0"


def test_attack_and_certificate_take_the_data_of_the_run(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["attack", str(own_run), "--preset", "fast", "--eps", "0.1"]) == 0
    assert "8 samples" in capsys.readouterr().out  # a fifth of forty
    assert cli.main(["certify", str(own_run), "--preset", "none"]) == 1  # a LayerNorm has no bound
    assert "nothing is certified" in capsys.readouterr().out


def test_words_and_tables_are_data_for_an_attack(
    own_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Numbered as they would be in training: by their names."""
    x, names = np.linspace(-1, 1, 30).repeat(18).reshape(30, 6, 3), np.array(["high", "low"] * 15)
    np.savez(tmp_path / "plain.npz", x=x, y=np.arange(30) % 2)
    np.savez(tmp_path / "words.npz", x=x, y=names)
    rows = [f"{i},{t},{','.join(map(str, x[i, t]))},{names[i]}" for i in range(30) for t in range(6)]
    (tmp_path / "table.csv").write_text("id,time,a,b,c,label\n" + "\n".join(rows))
    call, said_of = ["attack", str(own_run), "--preset", "fast", "--eps", "0.1"], []
    for file in ("plain.npz", "words.npz", "table.csv"):
        assert cli.main([*call, "--data", str(tmp_path / file)]) == 0
        said_of.append(capsys.readouterr().out)
    assert said_of[0] == said_of[1] == said_of[2]
    assert "30 samples" in said_of[0]
    assert "no file" in said(capsys, "attack", str(own_run), "--data", str(tmp_path / "none.csv"))


def test_data_of_a_run_that_is_gone(own_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = shutil.copytree(own_run, tmp_path / "run")
    cell = json.loads((run / "cell.json").read_text().replace("mine.npz", "moved.npz"))
    write_json(run / "cell.json", cell)
    for command in ("attack", "certify"):
        assert "name it with --data" in said(capsys, command, str(run))
    with (run / "cell.json").open("r+b") as file:
        file.truncate(2**34)  # takes no room on the disk, but would in memory
    (run / "record.json").unlink()  # which tells the settings too
    for command in ("attack", "certify"):
        assert "17,179,869,184 bytes" in said(capsys, command, str(run))


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it was executed')",)


def test_a_pickle_in_the_place_of_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_cell(replace(small_cell(), attacks=()), tmp_path / "run", tell=lambda line: None)
    path = tmp_path / "run" / "checkpoint" / "best" / "model.safetensors"
    torch.save(Bomb(), path)
    for command in ("attack", "certify", "analyse"):
        error = said(capsys, command, str(tmp_path / "run"))
        assert "is not what its run kept there" in error
    copied = shutil.copytree(path.parent, tmp_path / "copied")  # beside no record that tells its digest
    for command in ("attack", "certify", "analyse"):
        assert "model.safetensors cannot be read" in said(capsys, command, str(copied), "--data", "digits")


def test_a_report_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="the extra `cloud` is not installed")
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
    assert "no folder" in said(capsys, "report", str(tmp_path / "nowhere"))
    assert "no run in memory://nothing/here" in said(capsys, "report", "memory://nothing/here")
    assert "cannot be opened" in said(capsys, "report", "nosuch://x/y")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "cell.json").write_text("{}")
    (tmp_path / "runs" / "one" / "record.json").write_bytes(b"\xff{")
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    assert "record.json: cannot be read" in (tmp_path / "runs" / "report.md").read_text()
    (tmp_path / "runs" / "one" / "record.json").write_text("[" * 100_000)  # deeper than any parser goes
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    assert "record.json: cannot be read" in (tmp_path / "runs" / "report.md").read_text()
