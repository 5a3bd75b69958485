"""`torchrun --nproc-per-node 2 -m resolvent ...` on the CPU: trains, attacks and writes like a single process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import resolvent as package

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TRAIN = ("run", "train", "--epochs", "3", "--width", "16", "--layers", "1", "--layer", "lru", "--eps", "0.05",
         "--objective", "pgd-at", "--batch-size", "61", "--no-report")  # fmt: skip
PACKAGE = str(Path(package.__file__).parent) + os.sep  # a clone may itself be called so, with its environment inside
SAMPLES = "37"  # odd, and no multiple of anything


def resolvent(processes: int, *arguments: str) -> str:
    """What was said; both streams."""
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*start, "-m", "resolvent", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def folder(out: Path) -> Path:
    return out / "train" / "digits-lru-pgd-at" / "seed-0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same cell by one process and by two."""
    place = tmp_path_factory.mktemp("runs")
    said = {n: resolvent(n, *TRAIN, "--out", str(place / str(n))) for n in (1, 2)}
    assert said[2].count("results: ") == 1  # one process speaks
    return {n: folder(place / str(n)) for n in (1, 2)}


def record(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((path / "record.json").read_text())
    return held


def test_training_and_its_files_are_those_of_one_process(runs: dict[int, Path]) -> None:
    one, two = (record(runs[n]) for n in (1, 2))
    assert one["cell"] == two["cell"]
    assert one.keys() == two.keys()
    for a, b in zip(one["training"]["rows"], two["training"]["rows"], strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-5)  # float32: sums in another order
    names = [{p.relative_to(runs[n]).as_posix() for p in runs[n].rglob("*") if p.is_file()} for n in (1, 2)]
    pieces = {name for name in names[1] if "part-" in name}
    assert {name for name in names[0] if not name.endswith("0000.safetensors") and "attack/" not in name} == {
        name for name in names[1] - pieces if "attack/" not in name
    }
    assert {name for name in names[0] if name.endswith("record.json")} == {
        name for name in names[1] - pieces if name.endswith("record.json")
    }


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def begin(command: list[str], out: Path, **more: str) -> subprocess.Popen[str]:
    """The training of `runs` as a process group of its own."""
    return subprocess.Popen(
        [*command, "-m", "resolvent", *TRAIN, "--out", str(out)],
        env=ENVIRONMENT | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job would ignore it
    )


def wait_for_an_epoch(process: subprocess.Popen[str], out: Path) -> None:
    while not (folder(out) / "metrics.jsonl").is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_ctrl_c_stops_every_process_and_the_same_command_goes_on(
    runs: dict[int, Path], tmp_path: Path, twice: bool
) -> None:
    process = begin(TORCHRUN, tmp_path)
    wait_for_an_epoch(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does; torchrun tells its processes once more
    if twice:
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
    said, complained = process.communicate(timeout=120)
    assert process.returncode != 0  # torchrun's own status
    assert said.count("the same command resumes from there") == 1
    assert PACKAGE not in complained  # no traceback of ours; torchrun's own names files of the environment
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left
    assert not (folder(tmp_path) / "record.json").exists()
    assert not list(tmp_path.rglob(".lock*"))
    resolvent(2, *TRAIN, "--out", str(tmp_path))
    assert record(folder(tmp_path)) | {"times": 0, "digest": 0} == record(runs[2]) | {"times": 0, "digest": 0}


def test_a_process_that_lost_the_others_says_so(tmp_path: Path) -> None:
    """On several machines torchrun of one does not see the processes of another."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    first, second = (begin([sys.executable], tmp_path, RANK=rank, **place) for rank in "01")
    wait_for_an_epoch(first, tmp_path)
    second.kill()
    second.communicate()
    _, complained = first.communicate(timeout=120)
    assert first.returncode == 2
    assert "another process of torchrun is gone" in complained
    assert "Traceback" not in complained
    assert not list(tmp_path.rglob(".lock*"))


def discrete(held: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("index", "label", "clean_prediction", "prediction", "broken_by", "queries", "gradients", "seed")
    return [tuple(row[name] for name in names) for row in held["records"]]


@pytest.fixture(scope="module")
def alone(runs: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return attacked(runs[1], tmp_path_factory.mktemp("alone"), 1, "64")


def attacked(run: Path, out: Path, processes: int, batch: str) -> dict[str, Any]:
    arguments = ("--preset", "fast", "--eps", "0.05", "--samples", SAMPLES, "--batch-size", batch, "--out", str(out))
    said = resolvent(processes, "attack", str(run), *arguments)
    assert said.count("robust accuracy") == 1
    return record(out)


@pytest.mark.parametrize(("processes", "batch"), [(2, "64"), (3, "5"), (1, "7"), (1, "1")])
def test_an_attack_finds_the_same_whoever_shares_it(
    runs: dict[int, Path], alone: dict[str, Any], tmp_path: Path, processes: int, batch: str
) -> None:
    shared = attacked(runs[1], tmp_path, processes, batch)
    assert discrete(shared) == discrete(alone)
    assert shared["flags"] == alone["flags"]
    assert {k: shared[k] for k in ("accuracy", "clean_accuracy", "table")} == {
        k: alone[k] for k in ("accuracy", "clean_accuracy", "table")
    }
    for a, b in zip(shared["records"], alone["records"], strict=True):  # float32 in batches of another shape
        assert a["margin"] == pytest.approx(b["margin"], rel=1e-3, abs=1e-3)
        assert a["norm"] == pytest.approx(b["norm"], rel=1e-5)
