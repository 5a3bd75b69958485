"""The Long Range Arena's own Pathfinder images, read from its unpacked release."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from resolvent.data.cache import Arrays
from resolvent.data.folder import VARIABLE, data_folder
from resolvent.data.pathfinder.png import read_png

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
PLACES = ("", "lra_release", "lra_release/lra_release")
_EMPTY = {"pathfinder32/curv_baseline/imgs/0/sample_172.png"}  # released without content


def read_pictures(side: int, segments: int) -> Arrays:
    """x (n, side^2, 1) and y (n,), uint8, in the order of the lists "folder file number label .." in metadata/*.npy.

    Despite their name those lists are plain text.
    """
    folder = _folder(side, segments)
    lists = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    images, labels = [], []
    for path in lists:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            picture, label = _entry(folder, line, f"{path}, line {number}")
            if "/".join(picture.parts[-5:]) in _EMPTY:
                continue
            image = read_png(picture.read_bytes(), str(picture))
            if image.shape != (side, side):
                raise ValueError(f"{picture}: expected {side} x {side} pixels, got {image.shape}.")
            images.append(image)
            labels.append(label)
    if not images:
        raise ValueError(f"pathfinder: {folder} lists no pictures in metadata/*.npy.")
    return {"x": np.stack(images).reshape(len(images), -1, 1), "y": np.array(labels, dtype=np.uint8)}


def _entry(folder: Path, line: str, where: str) -> tuple[Path, int]:
    cells = line.split()
    if len(cells) < 4 or cells[3] not in ("0", "1") or ".." in Path(cells[0], cells[1]).parts or cells[0][:1] == "/":
        raise ValueError(f"{where}: expected a folder, a file, a number and a label 0 or 1, got {line[:60]!r}.")
    return folder / cells[0] / cells[1], int(cells[3])


def _folder(side: int, segments: int) -> Path:
    name = f"pathfinder{side}/{FOLDERS[segments]}"
    for place in PLACES:
        folder = data_folder() / place / name
        if (folder / "metadata").is_dir():
            return folder
    raise FileNotFoundError(
        f"pathfinder: {str(data_folder() / PLACES[1] / name)!r} is not there; unpack {URL} into "
        f"{str(data_folder())!r} (or set {VARIABLE}), or leave official out to have the pictures generated."
    )
