"""Samples that stay on disk: read in pieces, prepared once into separate files, memory-mapped.

Scale, fill values and ranges are computed in passes over them; the prepared .npy files are in the data folder's
cache, named by everything that they depend on, and are read batch by batch. Arrays that need no change, real float32
parts without gaps, lengths or scaling, are mapped in place.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.folder import data_folder, make_folder
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.data.task import Split
from resolvent.disk import fingerprint, read_json, replace, write_json
from resolvent.models.settings import to_dict

PIECE = 8 << 20  # bytes read at once, as float64; a few copies of them are made
INDEX = "index.json"


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of an array on the disk: x (m, l, c) or (m, l) mapped, restricted to `index` (n,); None: all.

    files   the sources: if they change, prepared data are invalid
    """

    x: np.ndarray
    y: Tensor
    lengths: Tensor | None
    index: Tensor | None
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    @property
    def real(self) -> bool:
        return self.x.dtype.kind == "f" or self.x.ndim == 3  # tokens have no channels

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, l, c) of real samples, (n, l) of tokens."""
        steps = self.x.shape[1:]
        return (len(self), *steps, *((1,) if self.real and len(steps) == 1 else ()))

    def select(self, index: Tensor) -> Rows:
        places = index if self.index is None else self.index[index]
        lengths = None if self.lengths is None else self.lengths[index]
        return Rows(self.x, self.y[index], lengths, places, self.files)

    def pieces(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """x (k, l, c) as float32 or float64, or tokens (k, l), and lengths (k,), piece by piece."""
        count = max(1, PIECE // (8 * int(np.prod(self.shape[1:], dtype=np.int64))))
        for first in range(0, len(self), count):
            part = slice(first, min(first + count, len(self)))
            lengths = None if self.lengths is None else self.lengths[part]
            yield self._read(part), lengths

    def _read(self, part: slice) -> Tensor:
        raw = self.x[part] if self.index is None else self.x[self.index[part].numpy()]
        if not self.real:
            return torch.from_numpy(raw.astype(np.int64))
        wide = np.result_type(raw.dtype, np.float32)  # float64 where float32 would round
        return torch.from_numpy(raw.astype(wide)).reshape(raw.shape[0], *self.shape[1:])


def map_array(path: Path) -> np.ndarray:
    """A read-only mapped .npy file. Not copy-on-write, which is refused for files larger than memory."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as wrong:
        why = "it holds Python objects" if "pickle" in str(wrong).lower() else " ".join(str(wrong).split())
        raise ValueError(f"{path}: expected an .npy file of plain numbers, not to be read: {why}") from wrong


def as_tensor(array: np.ndarray) -> Tensor:
    """The same memory; it is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)


def prepare_rows(raw: Mapping[str, Rows], ready: Preprocess) -> dict[str, Split]:
    """The splits as the model reads them, mapped: the user's own files where nothing changes, else prepared ones."""
    if all(_is_ready(rows, ready) for rows in raw.values()):
        return {part: _split(rows, rows.x, ready) for part, rows in raw.items()}
    folder = data_folder() / "cache" / f"prepared-{_key(raw, ready)}"
    if not _is_whole(folder):
        make_folder(folder.parent)
        _write(folder, raw, ready)
    return {part: _split(rows, map_array(folder / f"{part}.npy"), ready) for part, rows in raw.items()}


def _is_ready(rows: Rows, ready: Preprocess) -> bool:
    plain = rows.index is None and rows.lengths is None and rows.x.dtype == np.float32 and rows.x.flags.c_contiguous
    return plain and ready.scale == "none" and not ready.flagged and ready.missing == "refuse"


def _split(rows: Rows, array: np.ndarray, ready: Preprocess) -> Split:
    x = as_tensor(array).reshape(len(rows), *array.shape[1:], *((1,) if rows.real and array.ndim == 2 else ()))
    return Split(x, rows.y, rows.lengths, packed=None if rows.real else 0, mapped=True)


def _key(raw: Mapping[str, Rows], ready: Preprocess) -> str:
    """A key from the files' paths, sizes and times, the selected samples, and the preprocessing."""
    record: dict[str, Any] = {"preprocess": to_dict(ready)}
    for part, rows in raw.items():
        stats = {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in rows.files}
        index = None if rows.index is None else hashlib.sha256(rows.index.numpy().tobytes()).hexdigest()
        record[part] = [stats, index, len(rows)]
    return fingerprint(record)[:16]


def _is_whole(folder: Path) -> bool:
    """Whether every file of the index, which is written last, exists with the right size."""
    try:
        return all((folder / name).stat().st_size == size for name, size in read_json(folder / INDEX).items())
    except (OSError, ValueError):
        return False


def _write(folder: Path, raw: Mapping[str, Rows], ready: Preprocess) -> None:
    """Every file appears whole: of several processes that prepare the same each may take what another wrote."""
    make_folder(folder)
    try:
        for part, rows in raw.items():
            replace(folder / f"{part}.npy", partial(_write_part, rows=rows, ready=ready))
        write_json(folder / INDEX, {f"{part}.npy": (folder / f"{part}.npy").stat().st_size for part in raw})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # a full disk, Ctrl-C: remove partial results
        raise


def _write_part(path: Path, rows: Rows, ready: Preprocess) -> None:
    """Ordinary writes instead of a mapping: a full disk is then a reportable error, not a signal."""
    n, *steps = rows.shape
    shape = (n, *steps) if not rows.real else (n, steps[0], steps[1] + len(ready.flagged))
    kind = np.float32 if rows.real else np.int32
    head = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, head)
        for x, lengths in rows.pieces():
            file.write(np.ascontiguousarray(ready(x, lengths).numpy().astype(kind, copy=False)).data)
