"""Results in an object store: what a stopped run left is gone on from, and the same files as in a folder."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import shutil
import sys
import tarfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="the extra `cloud` is not installed")

from resolvent.experiments import Folder, RunError, run_cell
from resolvent.experiments.store.bundle import DamagedBundle, pack, run_files, unpack
from resolvent.experiments.store.fetch import fetch_runs
from resolvent.experiments.store.objects import Objects, is_url
from resolvent.experiments.store.store import PROGRESS, ObjectStore, open_store
from resolvent.experiments.sweep import sweep

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell

BARE = replace(small_cell(), attacks=())


def quiet(line: str) -> None:
    return


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = uuid.uuid4().hex
    return f"file://{tmp_path}/{name}" if request.param == "file" else f"memory://{name}/runs"


def timeless(record: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key not in ("times", "digest")}, sort_keys=True)


# -- objects -----------------------------------------------------------------------------------------------------------


def test_objects(url: str, tmp_path: Path) -> None:
    objects = Objects(url)
    objects.check()
    assert objects.names() == []
    assert objects.read("a/b") is None
    objects.write("a/b", b"one")
    assert objects.read("a/b") == b"one"
    objects.write("a/b", b"three")
    assert objects.has("a/b")
    assert objects.fetch("a/b", tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == b"three"
    objects.send(tmp_path / "deep" / "copy", "a/c/d")
    assert objects.names("a") == ["a/b", "a/c/d"]
    objects.remove("a/b")
    objects.remove("a/b")
    assert not objects.fetch("a/b", tmp_path / "other")
    assert objects.names() == ["a/c/d"]


@pytest.mark.parametrize("wrong", ["nosuch://bucket/runs", "memory:/x"])
def test_addresses_that_nobody_knows(wrong: str) -> None:
    if is_url(wrong):
        with pytest.raises(RunError, match="cannot be opened"):
            open_store(wrong)
    else:
        assert not is_url(wrong)


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot write below"):
        open_store(f"file://{tmp_path}/file/runs")


# -- bundles -----------------------------------------------------------------------------------------------------------


def test_a_bundle_is_read_from_the_latest_file_back(tmp_path: Path) -> None:
    names = ["cell.json", "checkpoint/best/model.safetensors", "checkpoint/state.safetensors", "summary.json",
             "checkpoint/sums.json", "attack/x/01.safetensors", "stage/attacks.json"]  # fmt: skip
    for name in [*names, "record.json", ".lock", "checkpoint/.state.1.part", "damaged/record.json"]:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(name)
    found = run_files(tmp_path / "run")
    assert sorted(found) == sorted(names)
    order = [found.index(name) for name in reversed(names[2:])]
    assert order == sorted(order)
    assert found.index("checkpoint/best/model.safetensors") > found.index("checkpoint/state.safetensors")
    unpack(pack(tmp_path / "run", tmp_path / "bundle"), tmp_path / "copy")
    assert {p.relative_to(tmp_path / "copy").as_posix(): p.read_text() for p in (tmp_path / "copy").rglob("*.*") if
            p.is_file()} == {name: name for name in names}  # fmt: skip


@pytest.mark.parametrize("size", [10, 600, -700])
def test_a_cut_bundle_is_refused_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "cell.json").write_text("x" * 600)
    bundle = pack(tmp_path / "run", tmp_path / "bundle")
    bundle.write_bytes(bundle.read_bytes()[:size])
    with pytest.raises(DamagedBundle):
        unpack(bundle, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_bundle_cannot_leave_its_folder(tmp_path: Path) -> None:
    """Forged with a right checksum: names above the folder, links out of it."""
    for kind in (tarfile.REGTYPE, tarfile.SYMTYPE):
        member = tarfile.TarInfo("../escaped")
        member.type, member.linkname = kind, "/etc/passwd"
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as archive:
            archive.addfile(member, io.BytesIO(b""))
        path = tmp_path / "bundle"
        path.write_bytes(hashlib.sha256(raw.getvalue()).hexdigest().encode() + raw.getvalue())
        with pytest.raises(DamagedBundle):
            unpack(path, tmp_path / "copy")
        assert not (tmp_path / "escaped").exists()


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run_cell(BARE, folder, tell=quiet)
    return folder


def test_a_sweep_leaves_the_files_of_a_folder(url: str, whole: Path, tmp_path: Path) -> None:
    records = sweep([BARE], url, tell=quiet)
    assert [timeless(record) for record in records] == [timeless(Folder(whole).record() or {})]
    names = sorted(p.relative_to(whole).as_posix() for p in whole.rglob("*") if p.is_file())
    assert Objects(url).names() == [f"{BARE.place}/{name}" for name in names]
    weights = "checkpoint/best/model.safetensors"
    assert Objects(url).read(f"{BARE.place}/{weights}") == (whole / weights).read_bytes()
    copy = fetch_runs(url, tmp_path / "copy")
    assert {p.name for p in (copy / BARE.place).iterdir()} == {"cell.json", "record.json"}
    lines: list[str] = []
    assert sweep([BARE], url, tell=lines.append) == records
    assert not any("training" in line for line in lines)
    with pytest.raises(RunError, match=r"budget\.lr was 0\.01 there"):
        sweep([replace(BARE, budget=replace(BARE.budget, lr=0.02))], url, tell=quiet)


class Stop(Exception):
    pass


def test_a_stopped_worker_leaves_its_progress_to_the_next(
    url: str, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = importlib.import_module("resolvent.training.fit")
    store, keep = ObjectStore(url), home._store

    def stopping(run: Any, row: Any) -> None:
        keep(run, row)
        if row["epoch"] == 2:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(home, "_store", stopping)
        with pytest.raises(Stop):
            sweep([BARE], store, tell=quiet)
    assert f"{BARE.place}/{PROGRESS}" in store.objects.names()
    epochs: list[int] = []

    def counting(run: Any, row: Any) -> None:
        epochs.append(row["epoch"])
        keep(run, row)

    monkeypatch.setattr(home, "_store", counting)
    (record,) = sweep([BARE], store, tell=quiet)
    assert epochs == [3]  # the first two were not trained again
    assert timeless(record) == timeless(Folder(whole).record() or {})
    assert not [name for name in store.objects.names() if PROGRESS in name]


@pytest.mark.slow
def test_a_running_cell_sends_its_progress(url: str, whole: Path) -> None:
    store = ObjectStore(url, keep=0.01)
    with store.working(BARE.place) as path:
        shutil.copytree(whole, path, ignore=shutil.ignore_patterns("record.json"), dirs_exist_ok=True)
        while f"{BARE.place}/{PROGRESS}" not in store.objects.names():
            time.sleep(0.01)
        run_cell(BARE, path, tell=quiet)
    assert store.complete(BARE.place)
    assert f"{BARE.place}/{PROGRESS}" not in store.objects.names()


@pytest.mark.slow
def test_damaged_progress_is_told_and_not_used(url: str, whole: Path) -> None:
    store, lines = ObjectStore(url), []
    store.objects.write(f"{BARE.place}/{PROGRESS}", b"0" * 500)
    (record,) = sweep([BARE], store, tell=lines.append)
    assert any("does not hold what was packed" in line for line in lines)
    assert timeless(record) == timeless(Folder(whole).record() or {})


@pytest.mark.parametrize("tells", [True, False], ids=["sizes told", "sizes not told"])
def test_no_more_is_fetched_than_allowed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    objects, sizes = Objects(url), Objects.sizes
    for name, held in (("a/cell.json", 10), ("a/record.json", 1000), ("b/cell.json", 20), ("c/record.json", 9000)):
        objects.write(name, b"x" * held)
    if not tells:
        monkeypatch.setattr(Objects, "sizes", lambda *a: dict.fromkeys(sizes(*a), 0))
    fetch_runs(url, tmp_path / "all", most=1030)  # c has no settings: nobody's run
    found = {p.relative_to(tmp_path / "all").as_posix(): p.stat().st_size for p in (tmp_path / "all").rglob("*.json")}
    assert found == {"a/cell.json": 10, "a/record.json": 1000, "b/cell.json": 20}
    with pytest.raises(RunError, match=r"more than 0 MiB .* '(a/record|b/cell)\.json'.* --fetch-limit"):
        fetch_runs(url, tmp_path / "part", most=1029)
    assert sum(p.stat().st_size for p in (tmp_path / "part").rglob("*") if p.is_file()) <= (0 if tells else 1029)


@pytest.mark.parametrize("name", ["../out/cell.json", "a/../../out/cell.json", "/out/cell.json", "c:/out/cell.json"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """S3 takes any text for a name."""
    monkeypatch.setattr(Objects, "sizes", lambda *a: {name: 1})
    with pytest.raises(RunError, match="leads out"):
        fetch_runs(f"memory://{uuid.uuid4().hex}", tmp_path / "copy")
    assert not list(tmp_path.rglob("*.json"))
