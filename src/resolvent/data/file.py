"""A user's file as a Task: npz, safetensors, CSV, Parquet or .ts; what was inferred is in `task.describe()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from resolvent.data.arrays import own
from resolvent.data.prepare import Own, Preparation, prepare
from resolvent.data.sequences import Sequences, stacked
from resolvent.data.table import Table, checked, read_csv, sequences
from resolvent.data.task import Task
from resolvent.data.ts import read_ts
from resolvent.data.words import numbered

SUFFIXES = (".npz", ".safetensors", ".csv", ".tsv", ".parquet", ".ts")
_VALIDATION = ("validation", "val", "valid")


def from_file(
    path: str | Path, *, test: str | Path | None = None, label: str | None = None, header: bool = True, **options: Any
) -> Task:
    """A task from a file, by its ending. The options are those of `from_arrays`; bounds are inferred unless told.

    .npz .safetensors   arrays x, y and perhaps lengths, class_names; or x_train, y_train, .., x_test, ..
    .csv .tsv .parquet  one row a sample or, with columns id and time, one row a step: see `table`
    .ts                 the format of the UEA and UCR archives

    test     another file of the same kind: all of it is the test part, none of the first is
    label    the column that holds the answers of a table
    header   False: the first line of a CSV is a sample, and its first column the answer
    """
    first = _checked(path)
    how = Preparation.of("from_file", **{"bounds": "infer"} | options)
    files = {"all": first} if test is None else {"train": first, "test": _checked(test)}
    if len({file.suffix.lower() for file in files.values()}) > 1:
        raise ValueError(f"from_file: expected two files of one kind, got {first.name} and {Path(str(test)).name}.")
    notes: tuple[str, ...] = ()
    if first.suffix.lower() in (".npz", ".safetensors"):
        parts, names = _arrays(files)
    else:
        read = {part: _sequences(file, label, header) for part, file in files.items()}
        parts, names = stacked(read)
        notes = tuple(dict.fromkeys(note for found in read.values() for note in found.notes))
    source = ", ".join(file.name for file in files.values())
    return prepare(parts, how, name=first.stem, source=source, class_names=names, notes=notes)


def _checked(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(f"from_file: expected a file that ends in {', '.join(SUFFIXES)}, got {file.name!r}.")
    if not file.is_file():
        raise FileNotFoundError(f"from_file: {str(file)!r} is not there.")
    return file


def _sequences(file: Path, label: str | None, header: bool) -> Sequences:
    if file.suffix.lower() == ".parquet":
        return sequences(_parquet(file), label)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise ValueError(f"{file}: expected text in UTF-8 ({wrong.reason} at byte {wrong.start}).") from wrong
    if file.suffix.lower() == ".ts":
        return read_ts(text, str(file))
    return sequences(read_csv(text, str(file), header), label)


def _parquet(file: Path) -> Table:
    try:
        from pyarrow import ArrowInvalid, parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as absent:
        raise ImportError(
            "from_file: Parquet needs pyarrow: pip install 'resolvent[data]', or save the table as CSV."
        ) from absent
    try:
        columns = parquet.read_table(file).to_pydict()
    except ArrowInvalid as wrong:
        raise ValueError(f"{file}: expected a Parquet table ({wrong}).") from wrong
    rows = [["" if cell is None else str(cell) for cell in row] for row in zip(*columns.values(), strict=True)]
    return checked(Table(list(columns), rows, range(1, len(rows) + 1), str(file)))


# -- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(files: Mapping[str, Path]) -> tuple[dict[str, Own], tuple[str, ...]]:
    held = {part: (_npz if file.suffix.lower() == ".npz" else _safetensors)(file) for part, file in files.items()}
    known = next((arrays["class_names"] for arrays in held.values() if "class_names" in arrays), np.zeros(0, "U1"))
    held, names = _numbered(held, tuple(str(name) for name in known.tolist()))
    parts: dict[str, Own] = {}
    for part, arrays in held.items():
        for name in _parts(arrays, files[part]):
            target = part if name == "" else ("validation" if name in _VALIDATION else name)
            parts[target] = _part(arrays, f"_{name}" if name else "", files[part])
    return _padded(parts), names


def _numbered(
    held: Mapping[str, dict[str, np.ndarray]], known: tuple[str, ...]
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[str, ...]]:
    """Classes that are words get one numbering over all parts and files."""
    places = [(part, name) for part, arrays in held.items() for name in arrays if name == "y" or name.startswith("y_")]
    answers, names = numbered({f"{part} {name}": held[part][name] for part, name in places}, known)
    own_ones = {part: {n: answers[f"{part} {n}"] for p, n in places if p == part} for part in held}
    return {part: arrays | own_ones[part] for part, arrays in held.items()}, names


def _parts(arrays: Mapping[str, np.ndarray], file: Path) -> list[str]:
    """ "" for x and y alone, or the parts that the names of the arrays tell."""
    if "x" in arrays:
        return [""]
    found = [name for name in ("train", *_VALIDATION, "test") if f"x_{name}" in arrays]
    if "train" not in found or "test" not in found:
        raise ValueError(
            f"{file}: expected arrays x and y, or x_train, y_train, x_test, y_test; got {', '.join(arrays) or 'none'}."
        )
    return found


def _part(arrays: Mapping[str, np.ndarray], ending: str, file: Path) -> Own:
    if f"y{ending}" not in arrays:
        raise ValueError(f"{file}: expected an array y{ending} beside x{ending}, got {', '.join(arrays)}.")
    try:
        return own(arrays[f"x{ending}"], arrays[f"y{ending}"], arrays.get(f"lengths{ending}"))
    except (ValueError, TypeError) as wrong:
        raise type(wrong)(f"{file}: {wrong}") from wrong


def _padded(parts: dict[str, Own]) -> dict[str, Own]:
    """Parts whose arrays differ in length cannot share a model's time axis unless lengths say what counts."""
    if len({part.x.shape[1:] for part in parts.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(part.x.shape)}" for name, part in parts.items())
        raise ValueError(
            f"from_file: expected the same steps and channels in every part, got {shapes}; pad and give lengths."
        )
    return parts


def _npz(file: Path) -> dict[str, np.ndarray]:
    return _read(file, lambda: dict(np.load(file, allow_pickle=False)))


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return _read(file, lambda: load_file(file))


def _read(file: Path, load: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Whatever a damaged or hostile file makes its reader raise becomes one sentence; pickles are never opened."""
    try:
        return load()
    except Exception as wrong:  # zip, zlib, numpy and safetensors each have many ways to fail
        why = "it holds Python objects, or is no archive" if "pickle" in str(wrong) else wrong
        raise ValueError(f"{file}: expected an archive of plain arrays, not to be read: {why}") from wrong
