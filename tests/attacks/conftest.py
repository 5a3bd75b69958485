"""Data of a stranger's class as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file
from victims import Recurrent, labelled, sequences


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x = sequences(8)
    save_file({"x": x, "y": labelled(Recurrent(), x)}, tmp_path / "data.safetensors")
    return tmp_path / "data.safetensors"
