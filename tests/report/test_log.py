"""Curves of runs for TensorBoard, read back by TensorBoard's own reader, and for W&B: its client, or a stand-in."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resolvent import cli
from resolvent.disk import write_json
from resolvent.report.log import Follower, TensorBoardLog, WandbLog, read_tracked

ROWS = [
    {"epoch": 1, "step": 4, "lr": 1e-3, "train_loss": 2.5, "validation_clean": 0.25, "seconds": 10.0, "note": None},
    {"epoch": 2, "step": 8, "lr": 5e-4, "train_loss": math.inf, "validation_clean": 0.5, "seconds": 6.0},
    {"epoch": 3, "step": 12, "lr": 0.0, "train_loss": 1.25, "seconds": 7.0},
]


def write_rows(folder: Path, rows: list[dict[str, Any]], tail: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


def make_run(folder: Path, rows: list[dict[str, Any]] = ROWS, complete: bool = True, seed: int = 0) -> Path:
    write_rows(folder, rows)
    write_json(folder / "cell.json", {"recipe": "mine", "tags": ["s4d"], "seed": seed, "model": {"d_model": 8}})
    if complete:
        summary = {"best": {"epoch": 2, "test_clean": 0.75}, "last": {"epoch": 3}, "gap": {"best": {"test_clean": 0.1}}}
        attacks = {"standard-linf-0.1-best": {"accuracy": 0.5, "samples": 8, "flags": [], "robust": True}}
        write_json(folder / "record.json", {"training": {"summary": summary}, "attacks": attacks})
    return folder


def scalars_of(folder: Path) -> dict[str, dict[int, float]]:
    """tag -> step -> value, as TensorBoard reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    held = accumulator.EventAccumulator(str(folder))
    held.Reload()
    return {tag: {each.step: each.value for each in held.Scalars(tag)} for tag in held.Tags()["scalars"]}


def test_tensorboard_reads_what_the_run_wrote(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    make_run(tmp_path / "runs" / "a" / "seed-0")
    os.utime(tmp_path / "runs" / "a" / "seed-0" / "metrics.jsonl", (1000.0, 1000.0))
    assert cli.main(["log", str(tmp_path / "runs")]) == 0
    found = scalars_of(tmp_path / "runs" / "tensorboard" / "a" / "seed-0")
    assert found["train/loss"] == {4: 2.5, 8: math.inf, 12: 1.25}
    assert found["validation/clean"] == {4: 0.25, 8: 0.5}
    assert found["best/test_clean"] == {12: 0.75}
    assert found["attacks/standard-linf-0.1-best/accuracy"] == {12: 0.5}
    assert "note" not in found
    assert "attacks/standard-linf-0.1-best/robust" not in found
    held = accumulator.EventAccumulator(str(tmp_path / "runs" / "tensorboard" / "a" / "seed-0"))
    held.Reload()
    assert [each.wall_time for each in held.Scalars("lr")] == [987.0, 993.0, 1000.0]  # epochs took 6 and 7 seconds
    shown = held.Tensors("settings")[0].tensor_proto.string_val[0].decode()
    assert json.loads(shown)["model"] == {"d_model": 8}


def test_called_again_it_takes_the_place_of_what_it_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard")
    run = make_run(tmp_path / "run")
    strange = tmp_path / "logs" / "run" / "events.out.tfevents.1.other"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(b"")
    for _ in range(2):
        assert cli.main(["log", str(run), "--out", str(tmp_path / "logs")]) == 0
    files = sorted(path.name for path in (tmp_path / "logs" / "run").iterdir())
    assert [name.endswith(".resolvent") for name in files].count(True) == 1
    assert strange.exists()


class Heard:
    """A log that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def begin(self, run: Any) -> None:
        self.calls.append(("begin", run.name))

    def add(self, run: Any, rows: Any) -> None:
        self.calls.append(("add", [row["step"] for row in rows]))

    def finish(self, run: Any) -> None:
        self.calls.append(("finish", run.found.get("best/test_clean")))

    def close(self) -> None: ...


def test_a_run_is_followed(tmp_path: Path) -> None:
    """A line on its way is left, rows come once, after a kill too; an overwritten run begins anew."""
    heard, run = Heard(), tmp_path / "runs" / "a"
    follower = Follower([tmp_path], heard)
    assert follower.update() == 0
    make_run(run, ROWS[:1], complete=False)
    follower.update()
    write_rows(run, ROWS[:1], '{"epoch": 2, "st')
    follower.update()
    write_rows(run, ROWS[:2])
    follower.update()
    write_rows(run, ROWS[:1])
    follower.update()
    make_run(run)
    follower.update()
    assert heard.calls == [("begin", "runs/a"), ("add", [4]), ("add", [8]), ("add", [12]), ("finish", 0.75)]
    heard.calls.clear()
    make_run(run, [ROWS[0] | {"train_loss": 9.0}], complete=False)
    (run / "record.json").unlink()
    follower.update()
    assert heard.calls == [("begin", "runs/a"), ("add", [4])]


def test_followed_events_are_read_while_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard")
    run, log = make_run(tmp_path / "runs" / "a", ROWS[:1], complete=False), TensorBoardLog(tmp_path / "logs")
    follower = Follower([tmp_path / "runs"], log)
    follower.update()
    assert scalars_of(tmp_path / "logs" / "a")["train/loss"] == {4: 2.5}
    make_run(run)
    follower.update()
    assert set(scalars_of(tmp_path / "logs" / "a")["train/loss"]) == {4, 8, 12}
    log.close()


def test_a_run_of_fit_without_a_cell_is_read_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "one", ROWS)
    write_json(tmp_path / "one" / "config.json", {"settings": {"epochs": 3}})
    write_json(tmp_path / "one" / "summary.json", {"best": {"test_clean": 0.5}}, of="this run")
    write_rows(tmp_path / "damaged" / "two", ROWS)
    (run,) = read_tracked([tmp_path])
    assert (run.name, run.settings, run.found) == ("one", {"settings": {"epochs": 3}}, {"best/test_clean": 0.5})


class StandIn:
    """What `wandb` is to us: init, log, summary, finish, as its documentation has them."""

    def __init__(self, refuse: str = "") -> None:
        self.errors, self.refuse, self.runs = SimpleNamespace(Error=KeyError), refuse, []

    def init(self, **how: Any) -> Any:
        if self.refuse:
            raise self.errors.Error(self.refuse)
        run = SimpleNamespace(how=how, rows=[], summary={}, finished=False)
        run.log = lambda values, step: run.rows.append((step, values))
        run.finish = lambda: setattr(run, "finished", True)
        self.runs.append(run)
        return run


def test_wandb_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    make_run(tmp_path / "runs" / "a", seed=0)
    make_run(tmp_path / "runs" / "b", seed=1)
    assert cli.main(["log", str(tmp_path / "runs"), "--to", "wandb", "--project", "gait", "--offline"]) == 0
    first, second = wandb.runs
    assert first.how["project"] == "gait"
    assert first.how["mode"] == "offline"
    assert first.how["config"]["model"] == {"d_model": 8}
    assert first.how["id"] != second.how["id"]
    assert [step for step, _ in first.rows] == [4, 8, 12]
    assert first.rows[2][1] == {"epoch": 3, "lr": 0.0, "train/loss": 1.25, "seconds": 7.0}
    assert first.summary["attacks/standard-linf-0.1-best/accuracy"] == 0.5
    assert first.finished
    assert second.finished
    assert cli.main(["log", str(tmp_path / "runs"), "--to", "wandb"]) == 0
    assert wandb.runs[2].how["id"] == first.how["id"]
    assert "mode" not in wandb.runs[2].how


def test_wandb_offline_keeps_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="no wandb")
    make_run(tmp_path / "runs" / "a")
    log = WandbLog(tmp_path / "out", offline=True)
    Follower([tmp_path / "runs"], log).update()
    log.close()
    (kept,) = (tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb")
    wanted, end = (b"validation/clean", b"attacks/standard-linf-0.1-best/accuracy", b"d_model"), time.monotonic() + 60
    while not all(known in kept.read_bytes() for known in wanted) and time.monotonic() < end:
        time.sleep(0.1)  # a process of its own writes the file, on a busy machine after `finish` has returned
    assert [known for known in wanted if known not in kept.read_bytes()] == []


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr().err
    assert output.count("\n") == 1, output
    return output


def test_bad_usage_comes_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", str(tmp_path / "absent")]) == 2
    assert "there is no folder" in one_line(capsys)
    assert cli.main(["log", "s3://bucket/runs"]) == 2
    assert "folders of this machine" in one_line(capsys)
    assert cli.main(["log", str(tmp_path), "--offline"]) == 2
    assert "--to wandb" in one_line(capsys)
    make_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "wandb", StandIn(refuse="No API key\nconfigured"))  # type: ignore[arg-type]
    assert cli.main(["log", str(tmp_path), "--to", "wandb"]) == 2
    assert "--offline" in one_line(capsys)
    for name, missing in {"wandb": "wandb", "tensorboard": "tensorboard.summary.writer.event_file_writer"}.items():
        monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
        assert cli.main(["log", str(tmp_path), "--to", name]) == 2
        assert f"pip install 'resolvent[{name}]'" in one_line(capsys)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", ROWS[:1], "[1, 2]\n")
    with pytest.raises(ValueError, match=r"line 2 of .*metrics.jsonl"):
        read_tracked([tmp_path])


def test_no_epoch_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard")
    write_rows(tmp_path / "a", [])
    assert cli.main(["log", str(tmp_path)]) == 2
    assert "--follow waits" in one_line(capsys)
