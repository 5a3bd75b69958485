"""Archives of arrays, .npz and .safetensors, read safely: no pickles, no arrays larger than memory, no odd types.

Half precision and narrower floats become float32.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive, by name. Any error of a damaged or hostile file becomes one clear message."""
    try:
        held = _npz(file) if file.suffix.lower() == ".npz" else _safetensors(file)
        return {name: _widen(array) for name, array in held.items()}
    except Exception as wrong:  # zip, zlib, numpy and safetensors each have many ways to fail
        why = "it holds Python objects, or is no archive" if "pickle" in str(wrong) else " ".join(str(wrong).split())
        raise ValueError(f"{file}: expected an archive of plain arrays, not to be read: {why}") from wrong


def _npz(file: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > memory():
        raise ValueError(f"it unpacks to {size:,} bytes, more than this machine has memory")
    with np.load(file, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    """Read by torch, which knows types that numpy lacks."""
    from safetensors.torch import load_file

    return {name: _array(tensor) for name, tensor in load_file(file).items()}


def _array(tensor: Any) -> np.ndarray:
    import torch

    known = (torch.float32, torch.float64)
    array: np.ndarray = (tensor.float() if tensor.is_floating_point() and tensor.dtype not in known else tensor).numpy()
    return array


def _widen(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype(np.float32 if array.dtype.itemsize < 8 else np.float64, copy=False)
    return array.astype(np.int64) if array.dtype.kind == "u" and array.dtype.itemsize > 1 else array


def memory() -> int:
    """Bytes of memory of this machine; a huge number if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 50
