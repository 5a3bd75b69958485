"""A data folder of the test's own, and the real one where it is filled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resolvent.data import data_folder


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("RESOLVENT_DATA", str(folder))
    return folder


@pytest.fixture
def need() -> Callable[..., None]:
    """Called with paths: skip unless the real data folder holds these files."""

    def check(*paths: str) -> None:
        for path in paths:
            if not (data_folder() / path).is_file():
                pytest.skip(f"{data_folder() / path} is not there; the set is downloaded by its first use")

    return check
