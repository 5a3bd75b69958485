"""Arrays that stay on the disk: the same numbers as in memory, read in pieces."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.data import from_arrays, from_file
from resolvent.data.preparation import mapped
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig
from resolvent.training import FitSettings


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "cached"))
    monkeypatch.setattr(mapped, "PIECE", 8 * 7 * 11 * 3)  # seven samples at once: the last piece is smaller


def arrays(gaps: bool = False, lengths: bool = False, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = (rng.normal(1e3, [1.0, 30.0, 0.1], (60, 11, 3))).astype(dtype)
    if gaps:
        x[rng.random(x.shape) < 0.1] = np.nan
        x[..., 2] = 0.1  # a channel that never changes, whose mean is no double
    held = {"x": x, "y": rng.integers(0, 3, 60)}
    return held | ({"lengths": rng.integers(2, 12, 60)} if lengths else {})


def write(folder: Path, held: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in held.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def in_memory(held: dict[str, np.ndarray], **options: Any) -> rv.data.Task:
    return from_arrays(held["x"], held["y"], held.get("lengths"), **{"bounds": "infer"} | options)


@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
@pytest.mark.parametrize("missing", ["refuse", "mean", "ffill", "flag"])
@pytest.mark.parametrize("lengths", [False, True])
def test_the_same_task_as_from_memory(tmp_path: Path, scale: str, missing: str, lengths: bool) -> None:
    held = arrays(missing != "refuse", lengths)
    own, known = from_file(write(tmp_path / "a", held), scale=scale, missing=missing), in_memory(
        held, scale=scale, missing=missing
    )  # fmt: skip
    assert (own.channels, own.classes, own.length) == (known.channels, known.classes, known.length)
    assert own.preprocess is not None
    assert known.preprocess is not None
    for name in ("centre", "width", "fill", "low", "high"):
        found, meant = getattr(own.preprocess, name), getattr(known.preprocess, name)
        assert np.allclose(found, meant, rtol=1e-12 if name in ("centre", "width") else 1e-5, atol=1e-6), name
    for part, split in own.splits().items():
        meant = known.splits()[part]
        assert split.mapped
        assert torch.equal(split.y, meant.y)
        assert torch.allclose(split.x, meant.x, rtol=1e-6, atol=1e-6)
        assert (split.lengths is None) == (meant.lengths is None)
    batch = own.train.select(torch.tensor([3, 0]))
    assert not batch.mapped
    assert torch.equal(batch.x, own.train.x[[3, 0]])


def test_parts_that_need_no_change_are_mapped_where_they_are(tmp_path: Path) -> None:
    held = arrays(dtype=np.float32)
    rows = {"train": slice(0, 40), "val": slice(40, 50), "test": slice(50, 60)}
    parts = {f"{name}_{part}": held[name][own] for name in ("x", "y") for part, own in rows.items()}
    task = from_file(write(tmp_path / "a", parts))
    assert not (tmp_path / "cached").exists()
    assert torch.equal(task.validation.x, torch.from_numpy(parts["x_val"]))
    assert all(split.mapped for split in task.splits().values())


def test_what_was_prepared_is_kept_until_the_files_change(tmp_path: Path) -> None:
    held, folder = arrays(), tmp_path / "a"
    from_file(write(folder, held), scale="standard")
    (cached,) = (tmp_path / "cached" / "cache").iterdir()
    stamp = (cached / "train.npy").stat().st_mtime_ns
    from_file(folder, scale="standard")
    assert (cached / "train.npy").stat().st_mtime_ns == stamp
    with (cached / "train.npy").open("r+b") as file:
        file.truncate(1000)
    whole = from_file(folder, scale="standard")
    assert torch.allclose(whole.train.x, in_memory(held, scale="standard").train.x, rtol=1e-6, atol=1e-6)
    np.save(folder / "x.npy", held["x"] + 1)
    moved = from_file(folder, scale="none")
    assert float(moved.train.x.mean()) == pytest.approx(float(in_memory(held).train.x.mean()) + 1, rel=1e-6)


def test_two_at_once_prepare_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has written one of its files, and waits until that has ended."""
    folder, write_part = write(tmp_path / "a", arrays(False, True)), mapped._write_part
    begun, ended = threading.Event(), threading.Event()

    def write_slowly(path: Path, rows: Any, ready: Any) -> None:
        if threading.current_thread() is second:
            begun.set()
            assert ended.wait(20)
        elif "validation" in path.name:
            second.start()
            assert begun.wait(20)
        write_part(path, rows, ready)

    second = threading.Thread(target=from_file, args=(folder,), kwargs={"scale": "standard"})
    monkeypatch.setattr(mapped, "_write_part", write_slowly)
    try:
        task = from_file(folder, scale="standard")
    finally:
        ended.set()
        second.join()
    assert [len(split.x) for split in task.splits().values()] == [42, 6, 12]


def test_tokens_words_groups_and_half_precision(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tokens = {"x": rng.integers(0, 9, (40, 6)).astype(np.uint16), "y": np.array(["no", "yes"] * 20),
              "patient": np.repeat(np.arange(10), 4)}  # fmt: skip
    task = from_file(write(tmp_path / "tokens", tokens), group="patient")
    assert (task.vocabulary, task.class_names) == (9, ("no", "yes"))
    few = task.train.select(torch.arange(3))
    assert few.x.dtype == torch.int64
    one = {"x": rng.random((30, 8)).astype(np.float16), "y": rng.random(30)}
    half = from_file(write(tmp_path / "half", one))
    assert (half.channels, half.classes, half.train.x.dtype) == (1, None, torch.float32)


def test_training_is_that_of_memory(tmp_path: Path) -> None:
    """The same weights, bit for bit, where the numbers are: a run with its folder and an attack inside."""
    held = arrays(dtype=np.float32)
    objective = rv.pgd_at(rv.Threat("linf", 0.1), steps=1)
    found = []
    for i, task in enumerate((from_file(write(tmp_path / "a", held)), in_memory(held))):
        torch.manual_seed(0)
        head, read = ClassifierConfig(3), ChannelsConfig(3)
        model = rv.build_model(ModelConfig(input=read, head=head, d_model=4, layers=1))
        rv.fit(model, task, objective, FitSettings(epochs=2, batch_size=16), tmp_path / f"run{i}")
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({}, "got no .npy file"),
        ({"x": np.zeros((4, 3, 1))}, "an array y beside x"),
        ({"x": np.zeros((4, 3, 1)), "y": np.zeros(3, int)}, "4 inputs, 3 labels"),
        ({"x": np.zeros((4, 3, 1, 2)), "y": np.zeros(4, int)}, "expected .n, l, c."),
        ({"x": np.full((40, 3, 1), np.nan), "y": np.arange(40) % 2}, "missing"),
        ({"x": np.array([{}] * 4), "y": np.zeros(4, int)}, "Python objects"),
    ],
)
def test_bad_folders_are_told(tmp_path: Path, held: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        from_file(write(tmp_path / "a", held))


def test_options_of_tables_are_refused_and_a_file_needs_its_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", arrays())
    with pytest.raises(ValueError, match="label is for tables"):
        from_file(folder, label="y")
    np.save(tmp_path / "signals.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"call it x\.npy"):
        from_file(tmp_path / "signals.npy")
    assert len(from_file(folder / "x.npy").train) == len(from_file(folder).train)


LIMITED = """
import resource, sys
import numpy as np, torch
import resolvent as rv
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig
from resolvent.training import FitSettings
torch.manual_seed(0)
model = rv.build_model(ModelConfig(input=ChannelsConfig(8), head=ClassifierConfig(2), d_model=4, layers=1))
rv.fit(model, rv.data.from_arrays(np.random.rand(40, 64, 8), np.arange(40) % 2), "standard", FitSettings(epochs=1))
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + (192 << 20), resource.RLIM_INFINITY))
try:
    np.ones(300 << 20, np.uint8)
    print("no limit")
except MemoryError:
    task = rv.from_file(sys.argv[1], scale="standard")
    rv.fit(model, task, "standard", FitSettings(epochs=1, batch_size=64), sys.argv[2])
    print("trained", len(task.train))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and measured as Linux does it")
def test_more_data_than_memory(tmp_path: Path) -> None:
    """400 MB of samples with room for 192 MB: scaled, checked, digested, trained on and measured."""
    rng, folder = np.random.default_rng(0), tmp_path / "large"
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (3200, 4096, 8))
    for i in range(0, 3200, 100):
        x[i : i + 100] = rng.normal(3, 2, (100, 4096, 8))
    x.flush()
    np.save(folder / "y.npy", np.arange(3200) % 2)
    call = [sys.executable, "-c", LIMITED, str(folder), str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trained", "2240"]
