"""Archives that were made by mistake or by malice: read where that makes sense, else one sentence."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from helpers import small_classifier
from resolvent import cli
from resolvent.data import from_file
from resolvent.data.readers.archive import read_arrays
from resolvent.models import LRUConfig, build_model, save_model

EIGHT = torch.float8_e4m3fn
X, Y = np.linspace(0, 1, 240, dtype=np.float32).reshape(20, 4, 3), np.arange(20) % 2
NARROW = {
    "f16.npz": lambda p: np.savez(p, x=X.astype("f2"), y=Y),
    "f16.safetensors": lambda p: save_file({"x": torch.from_numpy(X).half(), "y": torch.from_numpy(Y)}, p),
    "bf16.safetensors": lambda p: save_file({"x": torch.from_numpy(X).bfloat16(), "y": torch.from_numpy(Y)}, p),
    "f8.safetensors": lambda p: save_file({"x": torch.from_numpy(X).to(EIGHT), "y": torch.from_numpy(Y)}, p),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build_model(small_classifier(LRUConfig(4), channels=3, classes=2))
    return save_model(made, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", list(NARROW))
def test_narrow_numbers_are_widened(name: str, tmp_path: Path, model: Path) -> None:
    NARROW[name](tmp_path / name)
    held = read_arrays(tmp_path / name)
    assert held["x"].dtype == np.float32
    assert np.abs(held["x"] - X).max() <= 2**-4  # eight bits have three of a fraction
    assert from_file(tmp_path / name).channels == 3
    assert cli.main(["attack", str(model), "--data", str(tmp_path / name), "--preset", "fast", "--samples", "2"]) == 0


def declared(path: Path, shape: tuple[int, ...]) -> None:
    """An archive whose header promises more than it holds."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", head.getvalue())
        archive.writestr("y.npy", head.getvalue())


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 1000)
        archive.writestr("y.npy", b"\0" * 1000)
        archive.infolist()[0].file_size = 2**50  # what its directory tells


WRONG = {
    "empty": ({}, "nothing|got none"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, "at least one sample"),
    "one axis": ({"x": X[:, 0, 0], "y": Y}, "expected x"),
    "a number": ({"x": np.float32(1), "y": np.int64(1)}, "expected x"),
    "words": ({"x": X.astype("U8"), "y": Y}, "expected numbers in x"),
    "complex": ({"x": X.astype("c8"), "y": Y}, "expected numbers in x"),
    "fewer answers": ({"x": X, "y": Y[:7]}, "a label for each|as many labels"),
    "two answers": ({"x": X, "y": np.stack([Y, Y], 1)}, "y of shape|y \\(b,\\)"),
    "codes": ({"x": X, "y": Y + 10**9}, "number the classes|labels must lie in"),
}


@pytest.mark.parametrize("name", list(WRONG))
@pytest.mark.parametrize("command", ["attack", "run"])
def test_what_is_no_data_is_told(
    name: str, command: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    np.savez(tmp_path / "x.npz", **WRONG[name][0])
    call = {"attack": ["attack", str(model)], "run": ["run", "train", "--out", str(tmp_path / "runs"), "--no-report"]}
    assert cli.main([*call[command], "--data", str(tmp_path / "x.npz")]) == 2
    assert re.search(WRONG[name][1], capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("make", [lambda p: declared(p, (2**41,)), bomb], ids=["declared", "bomb"])
def test_promises_beyond_the_memory(make: object, tmp_path: Path) -> None:
    make(tmp_path / "x.npz")  # type: ignore[operator]
    with pytest.raises(ValueError, match="expected an archive of plain arrays, not to be read"):
        read_arrays(tmp_path / "x.npz")
