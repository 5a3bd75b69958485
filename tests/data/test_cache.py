"""Decoded arrays on disk: built once, noticed when damaged, built again; nobody's change reaches the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from resolvent.data.cache import Arrays, load_cached

BUILT: list[int] = []


def build() -> Arrays:
    BUILT.append(1)
    return {"x": np.arange(5000, dtype=np.int16).reshape(50, 100), "y": np.arange(50, dtype=np.uint8)}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    BUILT.clear()


def test_built_once_and_mapped(own_folder: Path) -> None:
    for _ in range(3):
        held = load_cached("some", build)
        assert isinstance(held["x"], np.memmap)
        assert np.array_equal(held["x"], np.arange(5000).reshape(50, 100))
        assert held["y"].dtype == np.uint8
    assert len(BUILT) == 1


def test_a_change_in_memory_stays_there(own_folder: Path) -> None:
    load_cached("some", build)["x"][:] = 0
    assert load_cached("some", build)["x"][3, 7] == 307
    assert len(BUILT) == 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "index.json"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_damage_is_noticed_and_repaired(own_folder: Path, name: str, harm) -> None:  # type: ignore[no-untyped-def]
    load_cached("some", build)
    harm(own_folder / "cache" / "some" / name)
    if name == "index.json" and harm is Path.unlink:
        held = load_cached("some", build)  # never finished: made without a word
    else:
        with pytest.warns(UserWarning, match=f"{name if harm is not Path.unlink else '.npy'}.* is damaged"):
            held = load_cached("some", build)
    assert np.array_equal(held["x"], np.arange(5000).reshape(50, 100))
    assert len(BUILT) == 2
    load_cached("some", build)
    assert len(BUILT) == 2


def test_a_pickle_is_never_opened(own_folder: Path) -> None:
    load_cached("some", build)
    folder = own_folder / "cache" / "some"
    with (folder / "x.npy").open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    index = json.loads((folder / "index.json").read_text())
    import zlib

    data = (folder / "x.npy").read_bytes()
    index["x"] = {"size": len(data), "crc32": zlib.crc32(data)}  # an attacker can write the index, too
    del index["digest"]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"pickle|object"):
        load_cached("some", build)


def test_an_index_cannot_point_elsewhere(own_folder: Path) -> None:
    load_cached("some", build)
    (own_folder / "cache" / "some" / "index.json").write_text('{"../../x": {"size": 1, "crc32": 0}}')
    with pytest.warns(UserWarning, match="damaged"):
        assert "x" in load_cached("some", build)


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached.*RESOLVENT_DATA"):
        assert load_cached("some", build)["x"].shape == (50, 100)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_kill_while_writing_leaves_nothing_that_counts(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resolvent.data.cache as home

    class Killed(BaseException): ...

    real, calls = home._save, []

    def stop(part: Path, array: np.ndarray) -> None:
        calls.append(1)
        if len(calls) == 2:
            part.write_bytes(b"half")
            raise Killed
        real(part, array)

    monkeypatch.setattr(home, "_save", stop)
    with pytest.raises(Killed):
        load_cached("some", build)
    monkeypatch.setattr(home, "_save", real)
    assert load_cached("some", build)["y"][7] == 7
    assert len(BUILT) == 2
