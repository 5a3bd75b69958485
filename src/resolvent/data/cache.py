"""Decoded arrays cached on disk: built once, then memory-mapped; a damaged file is detected and rebuilt.

folder/cache/NAME/x.npy ...      arrays, never pickles
folder/cache/NAME/index.json     written last: size and CRC-32 of every file; without it the rest is ignored
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from resolvent.data.folder import data_folder, make_folder
from resolvent.disk import read_json, replace, write_json

Arrays = dict[str, np.ndarray]
INDEX = "index.json"
_BLOCK = 1 << 22


def load_cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays of that name, mapped copy-on-write: changes do not reach the disk.

    `name` must determine the content. If the data folder cannot be written there is no cache: the arrays then stay in
    memory, with a warning.
    """
    folder = data_folder() / "cache" / name
    held = _load(folder)
    if held is not None:
        return held
    built = build()
    try:
        _store(make_folder(folder), built)
    except OSError as wrong:
        warnings.warn(f"data: {name} is not cached and will be made again next time: {wrong}", stacklevel=2)
        return {name: np.array(array) for name, array in built.items()}  # writable, as mapped ones are
    return _map_arrays(folder, built)


def _load(folder: Path) -> Arrays | None:
    """None when the cache is absent or damaged."""
    if not (folder / INDEX).is_file():
        return None
    wrong = _damage(folder)
    if wrong:
        warnings.warn(f"data: {folder / wrong} is damaged and is made again.", stacklevel=3)
        return None
    return _map_arrays(folder, read_json(folder / INDEX))


def _damage(folder: Path) -> str | None:
    """The first file that differs from the index, or the index itself."""
    try:
        index = read_json(folder / INDEX)
        expected = {str(name): (int(entry["size"]), int(entry["crc32"])) for name, entry in index.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return INDEX
    for name, (size, crc) in expected.items():
        path = folder / f"{name}.npy"
        if "/" in name or not path.is_file() or path.stat().st_size != size or _crc(path) != crc:
            return path.name
    return None


def _map_arrays(folder: Path, names: dict[str, object] | Arrays) -> Arrays:
    return {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in names}


def _store(folder: Path, arrays: Arrays) -> None:
    (folder / INDEX).unlink(missing_ok=True)
    index = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        replace(path, lambda part, array=array: _save(part, array))  # type: ignore[misc]
        index[name] = {"size": path.stat().st_size, "crc32": _crc(path)}
    write_json(folder / INDEX, index)


def _save(part: Path, array: np.ndarray) -> None:
    with part.open("wb") as file:  # via a file object: np.save would append .npy to the name
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value
