"""AAN: do two papers of the ACL anthology cite one another? The Long Range Arena's Retrieval.

The set may not be redistributed. The arena's release (lra_release.gz, 7.7 GB) contains it; put its three files
tsv_data/new_aan_pairs.{train,eval,test}.tsv into lra_release/lra_release of the data folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from resolvent.data.cache import Arrays, load_cached
from resolvent.data.folder import VARIABLE, data_folder
from resolvent.data.readers.text import BYTES, encode_bytes
from resolvent.data.task import Task
from resolvent.data.tasks.official import Part, stored_splits

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
PLACES = ("aan", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_FILES = {"train": "train", "validation": "eval", "test": "test"}


def aan(*, length: int = 4000, packed: bool | None = None) -> Task:
    """Pairs of documents as bytes: x (n, 2, length), 257 tokens, padding 0; related or not."""
    if length < 1:
        raise ValueError(f"aan: expected a length of 1 or more, got {length}.")
    files = {part: _find(f"new_aan_pairs.{name}.tsv") for part, name in _FILES.items()}
    sizes = "-".join(str(path.stat().st_size) for path in files.values())  # another copy has another cache
    held = load_cached(f"aan-{length}-{sizes}", lambda: _encode(files, length))
    train, validation, test = (Part(held[f"{p}_x"], held[f"{p}_y"], held[f"{p}_lengths"], levels=0) for p in _FILES)
    return Task(
        "aan", *stored_splits(train, validation, test, packed), length=length, vocabulary=BYTES, classes=2,
        class_names=("unrelated", "related"), licence="not to be redistributed",
        source="D. Radev et al. (2013), the ACL anthology network corpus; pairs of Y. Tay et al. (2021)", pair=True,
        notes=(f"bytes, cut at {length}",),
    )  # fmt: skip


def read_pairs(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """(label, text, text) of lines "label TAB id TAB id TAB text TAB text"; the label may be written as 1.0."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            cells = line.rstrip(b"\r\n").split(b"\t")
            label = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}.get(cells[0])
            if len(cells) != 5 or label is None:
                raise ValueError(
                    f"{path}, line {number}: expected 0 or 1, two ids and two texts between tabs, got "
                    f"{len(cells)} cells, the first {cells[0][:20]!r}."
                )
            yield label, cells[3], cells[4]


def _find(name: str) -> Path:
    for place in PLACES:
        path = data_folder() / place / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"aan: {str(data_folder() / PLACES[0] / name)!r} is not there. The set may not be redistributed: take the file "
        f"from the folder tsv_data in {URL} and put it there, or set {VARIABLE} to the folder that holds lra_release."
    )


def _encode(files: dict[str, Path], length: int) -> Arrays:
    held: Arrays = {}
    for part, path in files.items():
        rows = list(read_pairs(path))
        texts = [text for _, first, second in rows for text in (first, second)]
        tokens, lengths = encode_bytes(texts, length)
        held[f"{part}_x"], held[f"{part}_lengths"] = tokens.reshape(-1, 2, length), lengths.reshape(-1, 2)
        held[f"{part}_y"] = np.array([label for label, _, _ in rows], dtype=np.uint8)
    return held
