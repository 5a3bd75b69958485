"""A folder of .npy files as samples that stay on disk, like an unpacked archive.

    signals/x.npy (n, l, c), signals/y.npy (n,)                    split by a seed
    signals/x_train.npy, y_train.npy, x_test.npy, y_test.npy       given parts, optionally x_validation.npy too

lengths.npy, class_names.npy, channel_names.npy and arrays of groups are named as in an .npz file. x is mapped, the
rest is read; x may be float16, float32, float64, or integers: (n, l, c) channels, (n, l) tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from resolvent.data.preparation.mapped import Rows, map_array
from resolvent.data.preparation.prepare import OnDisk
from resolvent.data.preparation.preprocess import check_lengths
from resolvent.data.readers.arrays import check_answers, check_groups

Arrays = dict[str, np.ndarray]


def is_mapped(path: str | Path) -> bool:
    """Whether `from_file` maps it: a folder, or one .npy file."""
    place = Path(path).expanduser()
    return place.suffix.lower() == ".npy" or place.is_dir()


def read_folder(path: str | Path) -> tuple[Path, Arrays]:
    """The folder and its arrays by name: x and its parts mapped, the others read."""
    place = Path(path).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"from_file: {str(path)!r} is not there.")
    if place.is_file() and not place.stem.startswith("x"):
        raise ValueError(
            f"from_file: {place.name} alone has no labels; call it x.npy, put y.npy beside it and give the folder."
        )
    folder = place if place.is_dir() else place.parent
    held = {file.stem: map_array(file) for file in sorted(folder.glob("*.npy"))}
    if not held:
        raise ValueError(f"from_file: expected x.npy and y.npy in the folder {str(folder)!r}, got no .npy file.")
    return folder, {name: array if name.split("_")[0] == "x" else np.array(array) for name, array in held.items()}


def on_disk(arrays: Mapping[str, np.ndarray], ending: str, folder: Path, group: str | None) -> OnDisk:
    """One part: its samples mapped, answers, lengths and groups checked."""
    x, y = arrays[f"x{ending}"], check_answers(arrays[f"y{ending}"])
    file = folder / f"x{ending}.npy"
    if x.dtype.kind not in "fiu" or x.ndim not in (2, 3) or 0 in x.shape:
        raise ValueError(f"{file}: expected (n, l, c) or (n, l) numbers, or (n, l) tokens, got {x.shape} {x.dtype}.")
    steps = arrays.get(f"lengths{ending}")
    lengths = None if steps is None else check_lengths(steps, x, str(folder))
    if len(y) != len(x):
        raise ValueError(f"{folder}: expected as many labels as inputs, got {len(x)} inputs, {len(y)} labels.")
    groups = check_groups(None if group is None else arrays[f"{group}{ending}"], len(x))
    return OnDisk(Rows(x, y, lengths, None, tuple(sorted(folder.glob("*.npy")))), groups)
