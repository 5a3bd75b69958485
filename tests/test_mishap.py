"""What may happen to any command: no room, no memory, code that ends the program. One line, a status, no traceback."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from resolvent import cli
from resolvent.commands import list as listing
from resolvent.experiments.store.lock import NAME, Lock
from resolvent.models import ModelConfig, ResidualConfig, S5Config, build_model, load_model, save_model


def complaint(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert cli.main(list(arguments)) == status
    error = capsys.readouterr().err
    assert error.startswith(f"resolvent {arguments[0]}: ")
    assert len(error.splitlines()) == 1
    return error


def raising(wrong: BaseException) -> Any:
    def run(*_: object) -> NoReturn:
        raise wrong

    return run


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        (OSError(28, "No space left on device", "out/x.json"), 2, "the disk is full (out/x.json)"),
        (PermissionError(13, "Permission denied", "/x"), 2, "/x: Permission denied"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), 2, "not enough memory"),
        (SystemExit("bye"), 2, "sys.exit('bye')"),
        (KeyError("x"), 3, "KeyError: 'x'. This is a bug"),
        (RecursionError("too deep"), 3, "RESOLVENT_TRACEBACK=1"),
    ],
)
def test_in_one_line(
    wrong: BaseException, status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "recipes", raising(wrong))
    assert words in complaint(capsys, status, "list")


def test_where_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(listing, "recipes", raising(KeyError("x")))
    monkeypatch.setenv(cli.TRACEBACK, "1")
    assert cli.main(["list"]) == 3
    assert "Traceback (most recent call last)" in capsys.readouterr().err


CODE = """
import sys
from torch import nn
class Ends(nn.Module):
    def __init__(self): sys.exit("no")
class Fails(nn.Module):
    def __init__(self, width): raise RuntimeError("no such width")
class Leaves(nn.Linear):
    def __init__(self): super().__init__(1, 10)
    def forward(self, x): sys.exit(3)
"""


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("Ends", "{}", "failed with SystemExit: no"),
        ("Fails", '{"width": 3}', "failed with RuntimeError: no such width"),
        ("Fails", "[" * 100_000, "--kwargs is not JSON"),
        ("Leaves", "{}", "sys.exit(3)"),
    ],
)
def test_code_of_somebody_else(
    name: str, kwargs: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.py").write_text(CODE)
    assert words in complaint(capsys, 2, "attack", f"{tmp_path / 'theirs.py'}:{name}", "--kwargs", kwargs)


def test_a_module_that_ends_when_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit")
    for command in (["attack", f"{tmp_path / 'ends.py'}:X"], ["check", "--module", f"{tmp_path / 'ends.py'}:X"]):
        assert "failed with SystemExit" in complaint(capsys, 2, *command)


# -- claims that nobody made -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [10**30, -1, 2**31, "x", None, 1.5])
def test_a_claim_of_an_impossible_process_falls(pid: object, tmp_path: Path) -> None:
    import socket

    (tmp_path / NAME).write_text(json.dumps({"pid": pid, "host": socket.gethostname(), "token": "t"}))
    with Lock(tmp_path) as lock:
        assert lock.held()


@pytest.mark.parametrize("name", [NAME, f"{NAME}.takeover"])
def test_a_link_that_leads_nowhere_is_no_claim(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    if name != NAME:
        (tmp_path / NAME).write_text("{}")
        for each in (NAME, name):
            os.utime(tmp_path / each, (0, 0), follow_symlinks=False)
    began = time.monotonic()
    with Lock(tmp_path) as lock:
        assert lock.held()
    assert time.monotonic() - began < 10
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "\xff"])
def test_a_claim_that_tells_nothing_goes_cold(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(text.encode("latin-1"))
    os.utime(tmp_path / NAME, (0, 0))
    with Lock(tmp_path) as lock:
        assert lock.held()


# -- checkpoints that ask for more than they hold ----------------------------------------------------------------------


@pytest.mark.parametrize(("field", "value"), [("layers", 100_000), ("d_model", 10**6)])
def test_settings_far_beyond_the_weights_are_refused_at_once(field: str, value: int, tmp_path: Path) -> None:
    """Without a digest, as an older version or a forger would write it."""
    from safetensors.torch import load_file, save_file

    from resolvent.models.checkpoint import SETTINGS, WEIGHTS

    model = build_model(ModelConfig(block=ResidualConfig(S5Config(4)), d_model=6, layers=2))
    save_model(model, tmp_path)
    settings = json.loads((tmp_path / SETTINGS).read_text()) | {field: value}
    del settings["digest"]
    (tmp_path / SETTINGS).unlink()
    save_file(load_file(tmp_path / WEIGHTS), tmp_path / WEIGHTS, metadata={"config": json.dumps(settings)})
    began = time.monotonic()
    with pytest.raises(ValueError, match="are not those of its weights"):
        load_model(tmp_path)
    assert time.monotonic() - began < 5
