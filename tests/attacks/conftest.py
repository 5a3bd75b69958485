"""Data of a stranger's class as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from victims import Recurrent, labelled, sequences

from graph_stand_in import Tape
from resolvent.runtime import dispatch
from resolvent.runtime.graph import cuda_graph


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x = sequences(8)
    save_file({"x": x, "y": labelled(Recurrent(), x)}, tmp_path / "data.safetensors")
    return tmp_path / "data.safetensors"


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Tape]]:
    """Recordings on a CPU, in torch's operations alone."""
    choose = dispatch._try

    def without_numba(op: str, candidate: dispatch.Candidate, *where: Any) -> Any:
        return "not here" if candidate.name == "numba" else choose(op, candidate, *where)

    monkeypatch.setattr(dispatch, "_try", without_numba)
    monkeypatch.setitem(cuda_graph.GRAPHS, "cpu", Tape)
    monkeypatch.setattr(Tape, "made", 0)
    monkeypatch.setattr(Tape, "replays", 0)
    dispatch.forget()
    yield Tape
    dispatch.forget()
