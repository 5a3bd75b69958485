"""A user's file as a Task: npz, safetensors, CSV, Parquet or .ts; what was inferred is in `task.describe()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from resolvent.data.preparation.prepare import OnDisk, Own, Preparation, prepare
from resolvent.data.preparation.preprocess import Layout
from resolvent.data.preparation.windows import Windows, cut_windows
from resolvent.data.readers.archive import read_arrays
from resolvent.data.readers.arrays import own
from resolvent.data.readers.columns import NO_COLUMNS, Columns, name_columns
from resolvent.data.readers.npy import is_mapped, on_disk, read_folder
from resolvent.data.readers.sequences import Sequences, as_number, stack_parts
from resolvent.data.readers.table import Table, check_table, read_csv, sequences
from resolvent.data.readers.ts import read_ts
from resolvent.data.readers.values import number_words
from resolvent.data.task import Task

ARRAYS = (".npz", ".safetensors")
SUFFIXES = (*ARRAYS, ".csv", ".tsv", ".parquet", ".ts")
_VALIDATION = ("validation", "val", "valid")


def from_file(
    path: str | Path,
    *,
    test: str | Path | None = None,
    label: str | None = None,
    header: bool = True,
    id: str | None = None,
    time: str | None = None,
    ignore: str | Sequence[str] | None = None,
    group: str | None = None,
    task: Literal["classification", "regression", "forecast"] | None = None,
    window: int | None = None,
    horizon: int | None = None,
    target: str | None = None,
    **options: Any,
) -> Task:
    """A task from a file, by its extension. The options are those of `from_arrays`; bounds default to "infer".

    .npz .safetensors   arrays x, y and maybe lengths, class_names, channel_names; or x_train, y_train, .., x_test, ..
    .csv .tsv .parquet  one row per sample or, with columns for id and time, one row per step
    .ts                 the format of the UEA and UCR archives
    a folder            x.npy, y.npy and so on, named as in an .npz: x stays on disk and may exceed memory

    test     another file of the same kind: it is the whole test part
    label    the column of a table with the targets
    header   False: the first line of a CSV is a sample, and its first column the target
    id, time the columns with the sample of a row and its time, if named differently;
             without times, rows are steps in the order of the file
    ignore   columns of a table to leave out: a list, or comma-separated names
    group    the column of a table, or the array of an archive, that says which samples belong together (a patient, a
             machine): no group is in two parts of the split
    task     "regression": targets are quantities, even if all are integers; "forecast": there are no
             targets, a model predicts from `window` steps the next `horizon` values (1) of the channel `target`, or
             of all channels; parts are split by time (windows.py). None: inferred from the targets

    Examples:
        >>> import numpy as np, tempfile
        >>> path = tempfile.mkdtemp() + "/mine.npz"
        >>> np.savez(path, x=np.random.rand(40, 12, 2), y=np.arange(40) % 2)
        >>> rv.from_file(path).length
        12
    """
    columns = Columns.of(id, time, ignore)
    how = Preparation.of("from_file", **{"bounds": "infer"} | options)
    if is_mapped(path):
        _check_task(task, "classification or regression of arrays on the disk")
        given = {"test": test, "label": label, "window": window, "horizon": horizon, "target": target}
        _refuse_options("for tables and series", **given, **{columns.given() or "id": columns.given()})
        return _from_folder(path, group, task, how)
    if task == "forecast":
        _refuse_options("of no use to a forecast", test=test, label=label, group=group)
        return forecast_file(path, window, horizon, target, header, columns, how)
    _check_task(task, "classification, regression or forecast")
    _refuse_options("for task='forecast'", window=window, horizon=horizon, target=target)
    first = checked_file(path)
    files = {"all": first} if test is None else {"train": first, "test": checked_file(test)}
    if len({file.suffix.lower() for file in files.values()}) > 1:
        raise ValueError(f"from_file: expected two files of one kind, got {first.name} and {Path(str(test)).name}.")
    source, notes = ", ".join(file.name for file in files.values()), []
    if first.suffix.lower() in ARRAYS:
        _refuse_columns(first, columns)
        parts, names, layout = _arrays(files, group)
    else:
        read: dict[str, Sequences] = {}
        layout = None
        for part, file in files.items():
            read[part] = read_sequences(file, label, header, like=layout, group=group, columns=columns)
            layout = layout or read[part].layout
        parts, names = stack_parts(read, classes=task == "classification")
        notes = list(dict.fromkeys(note for found in read.values() for note in found.notes))
        merged = sorted({answer for found in read.values() for answer in found.answers}.difference(names))
        notes += [f"labels that are one number are one class: {', '.join(merged[:20])}"] if names and merged else []
    parts, names = _answer_as(task, parts, names, first)
    return prepare(parts, how, name=first.stem, source=source, class_names=names, notes=notes, layout=layout)


def _from_folder(path: str | Path, group: str | None, task: str | None, how: Preparation) -> Task:
    """Arrays on disk; see `npy`."""
    folder, arrays = read_folder(path)
    answers = {name: array for name, array in arrays.items() if name.split("_")[0] != "x"}
    numbered, names = _number_classes({"all": answers}, names_in(answers, "class_names"))
    held = arrays | numbered["all"]
    parts: dict[str, Own | OnDisk] = {}
    for name in _parts(held, folder):
        ending = f"_{name}" if name else ""
        _require_beside(held, ending, folder, group)
        parts["validation" if name in _VALIDATION else name or "all"] = on_disk(held, ending, folder, group)
    if len({_kind_of(found) for found in parts.values()}) > 1:
        message = ", ".join(f"{part} {_kind_of(found)}" for part, found in parts.items())
        raise ValueError(f"{folder}: expected the same steps, channels and numbers in every part, got {message}.")
    layout = Layout(channels=names_in(held, "channel_names"))
    parts, names = _answer_as(task, parts, names, folder)
    notes = ["x stays on the disk and is read as it is needed"]
    return prepare(parts, how, name=folder.name, source=folder.name, class_names=names, notes=notes, layout=layout)


def _kind_of(part: Own | OnDisk) -> str:
    assert isinstance(part, OnDisk)
    return f"(n, {', '.join(map(str, part.rows.shape[1:]))}) {'real' if part.rows.real else 'tokens'}"


def _check_task(task: str | None, known: str) -> None:
    if task not in (None, "classification", "regression"):
        raise ValueError(f"from_file: task must be {known}, got {task!r}.")


def _refuse_options(why: str, **given: Any) -> None:
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise ValueError(f"from_file: {wrong} is {why}; leave out {wrong}.")


def forecast_file(
    path: str | Path, window: int | None, horizon: int | None, target: str | None, header: bool, columns: Columns,
    how: Preparation,
) -> Task:  # fmt: skip
    """Windows of the series in a file; see `windows.cut_windows`."""
    if window is None:
        raise ValueError("from_file: a forecast needs a window, the steps of the past that the model sees (--window).")
    file = checked_file(path)
    need = window + (horizon or 1)
    series, layout, notes = _read_series(file, header, replace(columns, target=target, need=need))
    names = layout.channels or tuple(str(i) for i in range(series[0].shape[1]))
    text = "; a row is a step where a table has a column time, or the channel that --target names"
    text = "" if layout.channels else text
    if target is not None and target not in names:
        raise ValueError(f"{file}: expected a channel {target!r} to forecast, got {', '.join(names[:20])}{text}.")
    wanted = None if target is None else (names.index(target),)
    windows = Windows(window, horizon or 1, targets=wanted)
    parts = cut_windows(series, windows, (how.fractions[0], how.fractions[1]), str(file), text)
    message = f"forecast of {windows.horizon} steps of {target or 'all channels'} from {window}; parts cut by time"
    made = prepare(parts, how, name=file.stem, source=file.name, notes=[*notes, message], layout=layout)
    return replace(made, horizon=windows.horizon)


def _read_series(file: Path, header: bool, columns: Columns) -> tuple[list[np.ndarray], Layout, tuple[str, ...]]:
    """Series (t, c) each, and their channels."""
    if file.suffix.lower() in ARRAYS:
        _refuse_columns(file, columns)
        arrays = read_arrays(file)
        if "x" not in arrays or arrays["x"].dtype.kind != "f":
            raise ValueError(f"{file}: expected real series x (n, l, c) or (l, c), got {', '.join(arrays)}.")
        x = arrays["x"]
        x = x[None] if x.ndim == 2 else x
        lengths = arrays.get("lengths", np.full(len(x), x.shape[1]))
        series = [row[:n] for row, n in zip(x, lengths.tolist(), strict=True)]
        return series, Layout(channels=names_in(arrays, "channel_names")), ()
    read = read_sequences(file, None, header, needed=False, columns=columns)
    return read.values, read.layout, read.notes


def _answer_as(
    task: str | None, parts: Mapping[str, Any], names: tuple[str, ...], file: Path
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parts (`Own` or `OnDisk`) with answers as the task asks for: quantities, or classes; and their names."""
    answers = {part: found.y for part, found in parts.items()}
    if task == "regression":
        answers, names = {part: _as_quantities(y, names, file) for part, y in answers.items()}, ()
    elif task == "classification" and any(y.is_floating_point() for y in answers.values()):
        answers, names = _as_classes(answers, file)
    own = {part: replace(found, y=answers[part]) for part, found in parts.items() if isinstance(found, Own)}
    disk = {k: replace(found, rows=replace(found.rows, y=answers[k])) for k, found in parts.items() if k not in own}
    return own | disk, names


def _as_quantities(y: Tensor, names: tuple[str, ...], file: Path) -> Tensor:
    """Answers as real numbers; classes that are words have none."""
    if y.is_floating_point() or not names:
        return y.float()
    values = [as_number(name) for name in names]
    wrong = [name for name, value in zip(names, values, strict=True) if value is None]
    if wrong:
        raise ValueError(f"{file}: expected numbers as targets of a regression, got the words {', '.join(wrong[:5])}.")
    return torch.tensor(values, dtype=torch.float32)[y]


def _as_classes(answers: Mapping[str, Tensor], file: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Whole numbers as classes, which are called by them."""
    values = torch.cat([y.reshape(-1) for y in answers.values()]).unique()
    if any(y.dim() > 1 for y in answers.values()) or bool((values != values.round()).any()):
        raise ValueError(f"{file}: expected classes, got real numbers as labels; use task='regression'.")
    numbered = {part: torch.searchsorted(values, y.to(values)) for part, y in answers.items()}
    return numbered, tuple(f"{value:.17g}" for value in values.tolist())


def checked_file(path: str | Path) -> Path:
    """The path, checked to exist and to be of a supported kind."""
    file = Path(path).expanduser()
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"from_file: expected a file that ends in {', '.join(SUFFIXES)}, got {file.name!r}; unpack it, or save it "
            "as one of these."
        )
    if not file.is_file():
        raise FileNotFoundError(f"from_file: {str(file)!r} is not there.")
    return file


def read_sequences(
    file: Path,
    label: str | None,
    header: bool = True,
    *,
    like: Layout | None = None,
    needed: bool = True,
    group: str | None = None,
    columns: Columns = NO_COLUMNS,
) -> Sequences:
    """The samples of a table or .ts file; `like`, `needed`, `group`: see `table.sequences`."""
    if group is not None and (file.suffix.lower() == ".ts" or not header):
        raise ValueError(f"{file}: expected a table with column names to find the groups {group!r} in.")
    if file.suffix.lower() == ".ts" or not header:
        _refuse_columns(file, columns)
    if file.suffix.lower() == ".parquet":
        return _samples_of(_parquet(file), label, like, needed, group, columns)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        why = f"{wrong.reason} at byte {wrong.start}"
        raise ValueError(f"{file}: expected text in UTF-8 ({why}); save it as such.") from wrong
    if file.suffix.lower() == ".ts":
        return read_ts(text, str(file), needed)
    found = _samples_of(read_csv(text, str(file), header), label, like, needed, group, columns)
    return replace(found, layout=replace(found.layout, header=header))


def _samples_of(
    table: Table, label: str | None, like: Layout | None, needed: bool, group: str | None, columns: Columns
) -> Sequences:
    """What the table holds, with the names of its columns in the layout."""
    named, notes = name_columns(table, columns, like)
    group = {columns.id: "id", columns.time: "time"}.get(group, group) if group is not None else None
    found = sequences(named, label, like, needed, group)
    layout = replace(found.layout, id=columns.id, time=columns.time, ignore=columns.ignore)
    return replace(found, layout=layout, notes=(*found.notes, *notes))


def _refuse_columns(file: Path, columns: Columns) -> None:
    if (wrong := columns.given()) is not None:
        raise ValueError(f"{file}: {wrong} names a column of a table with a header, which this is not; leave it out.")


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
    return check_table(Table(list(columns), rows, range(1, len(rows) + 1), str(file)))


# -- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(files: Mapping[str, Path], group: str | None) -> tuple[dict[str, Own], tuple[str, ...], Layout]:
    held = {part: read_arrays(file) for part, file in files.items()}
    known = next((found for arrays in held.values() if (found := names_in(arrays, "class_names"))), ())
    held, names = _number_classes(held, known)
    parts: dict[str, Own] = {}
    for part, arrays in held.items():
        for name in _parts(arrays, files[part]):
            target = part if name == "" else ("validation" if name in _VALIDATION else name)
            parts[target] = _part(arrays, f"_{name}" if name else "", files[part], group)
    channels = {part: names_in(arrays, "channel_names") for part, arrays in held.items()}
    if len(set(channels.values())) > 1:
        raise ValueError(f"from_file: expected the same channel_names in both files, got {channels}.")
    return _pad_parts(parts), names, Layout(channels=next(iter(channels.values())))


def names_in(arrays: Mapping[str, np.ndarray], key: str) -> tuple[str, ...]:
    """Names stored in an archive; empty if it has no such array."""
    return tuple(str(name) for name in arrays[key].tolist()) if key in arrays else ()


def _number_classes(
    held: Mapping[str, dict[str, np.ndarray]], known: tuple[str, ...]
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[str, ...]]:
    """Number classes given as words consistently over all parts and files."""
    places = [(part, name) for part, arrays in held.items() for name in arrays if name == "y" or name.startswith("y_")]
    answers, names = number_words({f"{part} {name}": held[part][name] for part, name in places}, known)
    own_ones = {part: {n: answers[f"{part} {n}"] for p, n in places if p == part} for part in held}
    return {part: arrays | own_ones[part] for part, arrays in held.items()}, names


def _parts(arrays: Mapping[str, np.ndarray], file: Path) -> list[str]:
    """ "" for x and y alone, or the parts given by the arrays' names."""
    if "x" in arrays:
        return [""]
    found = [name for name in ("train", *_VALIDATION, "test") if f"x_{name}" in arrays]
    if "train" not in found or "test" not in found:
        raise ValueError(
            f"{file}: expected arrays x and y, or x_train, y_train, x_test, y_test; got {', '.join(arrays) or 'none'}."
        )
    return found


def _part(arrays: Mapping[str, np.ndarray], ending: str, file: Path, group: str | None) -> Own:
    _require_beside(arrays, ending, file, group)
    groups = None if group is None else arrays[f"{group}{ending}"]
    try:
        return own(arrays[f"x{ending}"], arrays[f"y{ending}"], arrays.get(f"lengths{ending}"), groups)
    except (ValueError, TypeError) as wrong:
        raise type(wrong)(f"{file}: {wrong}") from wrong


def _require_beside(arrays: Mapping[str, np.ndarray], ending: str, file: Path, group: str | None) -> None:
    """Require targets, and groups if requested, along with the inputs."""
    if f"y{ending}" not in arrays:
        raise ValueError(f"{file}: expected an array y{ending} beside x{ending}, got {', '.join(arrays)}.")
    if group is not None and f"{group}{ending}" not in arrays:
        raise ValueError(f"{file}: expected an array {group}{ending} of groups, got {', '.join(arrays)}.")


def _pad_parts(parts: dict[str, Own]) -> dict[str, Own]:
    """Pad parts of different lengths to the longest; lengths then mark the valid steps."""
    if len({part.x.shape[1:] for part in parts.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(part.x.shape)}" for name, part in parts.items())
        raise ValueError(
            f"from_file: expected the same steps and channels in every part, got {shapes}; pad and give lengths."
        )
    return parts
