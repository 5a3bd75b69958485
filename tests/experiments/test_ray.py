"""Cells on Ray: what is refused, what a node does with a cell, and clusters on this machine that lose a node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resolvent import cli
from resolvent.experiments import Folder, RunError
from resolvent.experiments.cluster import cell_task, connection
from resolvent.experiments.cluster.cell_task import Needs, Order, Terms, make_task, run_order
from resolvent.experiments.cluster.connection import parse_address, require_answer
from resolvent.experiments.cluster.dispatch import Heard, dispatch
from resolvent.experiments.store.store import open_store
from resolvent.training import Paused

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell

ROOT = Path(__file__).resolve().parents[2]
BARE = replace(small_cell(), attacks=())
TRAIN = ("train", "--layer", "lru", "--width", "8", "--layers", "1", "--epochs", "2", "--no-report")


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is led by variables that are set for the whole process."""
    monkeypatch.delenv(connection.ADDRESS, raising=False)
    for name, value in (connection.QUIET | connection.OWN).items():
        monkeypatch.setenv(name, value)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a refused command says: one line."""
    assert cli.main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("resolvent run: ")
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
    return error


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "on", ["slurm", "ray:", "ray://", "ray://host", "ray://:6379", "ray://host:0", "ray://h:99999"]
)
def test_addresses_without_sense(capsys: pytest.CaptureFixture[str], tmp_path: Path, on: str) -> None:
    assert "ray://HOST:PORT" in said(capsys, *TRAIN, "--on", on, "--out", str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2", "--out", "s3://bucket/runs"], "--on ray instead"),
        (["--workers", "2", "--on", "ray"], "leave --workers out"),
        (["--on", "ray", "--device", "cuda:1"], "Ray chooses the GPU"),
        (["--on", "ray", "--cell-gpus", "0.5"], "goes with --device cuda"),
        (["--on", "ray", "--cell-cpus", "0"], "--cell-cpus must be"),
        (["--on", "ray", "--device", "cuda", "--cell-gpus", "1.5"], "a whole number of them, got 1.5"),
        (["--cell-cpus", "2"], "--cell-cpus is what a cell takes of a node of Ray"),
        (["--cell-gpus", "1"], "--cell-gpus is what a cell takes of a node of Ray"),
    ],
)
def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in said(capsys, *TRAIN, *words)


def test_torchrun_and_ray(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun" in said(capsys, *TRAIN, "--on", "ray")


def test_the_package_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = said(capsys, *TRAIN, "--on", "ray", "--out", str(tmp_path / "runs"))
    assert "pip install 'resolvent[ray]'" in told


def test_where_ray_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("ray") is None
    assert parse_address("ray://auto") == "auto"
    assert parse_address("ray://10.0.0.1:6379") == "10.0.0.1:6379"
    monkeypatch.setenv(connection.ADDRESS, "10.0.0.2:6379")
    assert parse_address("ray") == "10.0.0.2:6379"
    assert parse_address("ray://10.0.0.1:6379") == "10.0.0.1:6379"


def test_nobody_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and not listening
        port = free.getsockname()[1]
        told = said(capsys, *TRAIN, "--on", f"ray://127.0.0.1:{port}", "--out", str(tmp_path / "runs"))
    assert f"no Ray cluster answers at '127.0.0.1:{port}'" in told


def test_a_cluster_that_wants_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises a ConnectionError, and says why in the midst of what it prints."""
    said = "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken\nConnectionError: Failed to connect"
    monkeypatch.setattr(connection, "ASK", f"import sys; sys.exit({said!r})")
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(RunError, match="RAY_AUTH_MODE=token"):
        require_answer(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.slow
def test_somebody_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setattr(connection, "ANSWER", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        began = time.monotonic()
        with pytest.raises(RunError, match="no answer within 5 s"):
            require_answer(f"127.0.0.1:{other.getsockname()[1]}")
    assert time.monotonic() - began < 60


# -- what a node does --------------------------------------------------------------------------------------------------


def test_a_node_runs_a_cell(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    order = Order(BARE, Terms(str(tmp_path), Needs(1)), "mark")
    late = replace(order, terms=replace(order.terms, until=time.time() - 1))
    assert run_order(late).paused
    assert not (tmp_path / BARE.place / "record.json").exists()
    outcome = run_order(order)
    assert (outcome.place, outcome.wrong, outcome.paused) == (BARE.place, "", False)
    record = Folder(tmp_path / BARE.place).record()
    assert record is not None
    assert record["versions"]["threads"] == 1
    assert run_order(order) == outcome


def test_a_node_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_task, "PATIENCE", 0.0)
    order = Order(BARE, Terms(str(tmp_path)), "mark")
    assert "does not see the folder" in run_order(order).wrong
    (tmp_path / "mark").touch()
    assert "--device 'cuda:77'" in run_order(replace(order, terms=replace(order.terms, device="cuda:77"))).wrong
    absent = replace(BARE, task=replace(BARE.task, name="gone", file=str(tmp_path / "gone.npz")))
    assert "gone.npz" in run_order(replace(order, job=absent)).wrong
    assert not list(tmp_path.rglob("record.json"))


def test_a_node_of_another_version_does_not_read_the_order() -> None:
    place, _, wrong, paused = make_task()("here", "0.0.0", b"nothing that unpickles")
    assert (place, paused) == ("here", False)
    assert "and the caller 0.0.0; install the same" in wrong


def test_a_node_imports_inside_of_the_task() -> None:
    """Where it can be interrupted: what is sent by name is imported before the task begins."""
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="the extra `ray` is not installed")
    look = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('torch' in sys.modules)"
    sent = cloudpickle.dumps(make_task())
    assert subprocess.run([sys.executable, "-c", look], input=sent, check=False).returncode == 0


# -- clusters on this machine ------------------------------------------------------------------------------------------


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "resolvent", "run", *TRAIN, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def timeless(held: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(held)
    return record | {"times": 0, "digest": 0}


@pytest.mark.slow
def test_a_ray_of_its_own_stopped_and_gone_on(tmp_path: Path) -> None:
    """Ctrl-C cancels, says where results are and leaves no process; then a URL, budget and all, ends at the same."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    seeds, runs = ("--seeds", "0", "1", "2"), tmp_path / "runs"
    first = start(*seeds, "--on", "ray", "--out", str(runs))
    while not list(runs.rglob("record.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    out, error = first.communicate(timeout=120)
    assert first.returncode == 130, error
    assert f"everything so far is in {runs}: the same command resumes from there" in out
    assert not list(runs.glob(".shared-*"))
    for words in (("--out", str(runs)), ("--out", f"file://{tmp_path}/objects")):
        stored = set(runs.rglob("record.json"))
        again = start(*seeds, "--on", "ray", *words)
        out, error = again.communicate(timeout=600)
        assert again.returncode == 0, error
        assert "Ray has 1 node" in out
        in_time = words[1] == str(runs) and stored == set(runs.rglob("record.json"))  # all cells, before the Ctrl-C
        assert "[3/3]" in out or in_time
        assert "results: " in out
    alone = start(*seeds, "--out", str(tmp_path / "alone"))
    alone.communicate(timeout=600)
    for record in (tmp_path / "alone").rglob("record.json"):
        name = record.relative_to(tmp_path / "alone")
        assert timeless(record.read_bytes()) == timeless((runs / name).read_bytes())
        assert timeless(record.read_bytes()) == timeless((tmp_path / "objects" / name).read_bytes())
    assert not list((tmp_path / "objects").rglob("progress.bundle"))


@pytest.mark.slow
def test_stopped_before_the_first_cell_has_begun(tmp_path: Path) -> None:
    """Ctrl-C as the nodes still import: seconds, not the time that cells have to store what they have."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    process = start("--seeds", "0", "1", "2", "--on", "ray", "--out", str(tmp_path / "runs"))
    assert process.stdout is not None
    while "Ray has" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "the same command resumes from there" in out
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]  # no lock, no mark


@pytest.mark.slow
def test_what_cells_ask_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their share of a GPU, which the node only claims to have; more than any node has is not waited for for ever."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

    def tell_share(place: str, version: str, order: bytes) -> tuple[str, str, str, bool]:
        import os

        import ray

        given = ray.get_runtime_context().get_assigned_resources()
        return place, f"{given['CPU']:g} CPU, {given['GPU']:g} GPU {os.environ['CUDA_VISIBLE_DEVICES']}", "", False

    monkeypatch.setattr("resolvent.experiments.cluster.dispatch.make_task", lambda: tell_share)
    heard: list[str] = []
    store, quarter = open_store(tmp_path), Terms(str(tmp_path), Needs(1, 0.25), "cuda")
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        dispatch(ray, [BARE, BARE.seeded(1)], store, quarter, Heard(heard.append))
        assert "2 CPUs, 1 GPU; 2 of 2 cells are to be run, each with 1 CPU and 0.25 GPU" in heard[0]
        assert [line.partition(", on ")[2] for line in heard[1:]] == ["1 CPU, 0.25 GPU 0"] * 2
        two = replace(quarter, needs=Needs(1, 2.0), until=time.time() + 2)
        with pytest.raises(Paused, match="0 of 1 runs are done"):
            dispatch(ray, [BARE], store, two, Heard(heard.append))
        assert "No node has 1 CPU and 2 GPUs" in heard[-1]
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and Ray's clusters are for Linux")
def test_two_nodes_one_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    command = [sys.executable, "-m", "benchmarks.nodes", "--cells", "24", "--out", str(tmp_path / "nodes.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "nodes.json").read_text())
    assert found["records when killed"] < 24
    assert found["records of cells"] == found["of these identical but for times"] == 24
    assert found["records with those of attacks"] == found["all identical but for times"] > 24
    assert found["weights identical"] == found["weights"] >= 24
    assert found["files on one side alone"] == []
    assert found["of these not trained again"] == found["epochs stored when killed"] > 0
    assert any("is lost" in line for line in found["message"])
