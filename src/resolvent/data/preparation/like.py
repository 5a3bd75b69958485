"""New data read like the training data: channels and classes matched by name, padding as the model expects.

raw = read_like("new.csv", task.preprocess)
x = task.preprocess(raw.x, raw.lengths)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.data.preparation.preprocess import Preprocess, steps_inside
from resolvent.data.readers.archive import read_arrays
from resolvent.data.readers.file import ARRAYS, checked_file, names_in, read_sequences
from resolvent.data.readers.sequences import as_number, pad
from resolvent.data.readers.values import tensor_of, words_of
from resolvent.usage.numbers import list_some


@dataclass(frozen=True, eq=False)
class Raw:
    """Samples before they are preprocessed: x (n, l, c) real, NaN where missing, or tokens (n, l); y None: unknown."""

    x: Tensor
    y: Tensor | None = None
    lengths: Tensor | None = None
    ids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.x.shape[0]


def read_like(path: str | Path, how: Preprocess, *, label: str | None = None, header: bool | None = None) -> Raw:
    """The samples of a file; with targets if it has them."""
    file = checked_file(path)
    if file.suffix.lower() in ARRAYS:
        raw = _arrays(file, how)
        return replace(raw, notes=_note_ranges(raw, how))
    header = how.layout.header if header is None else header
    found = read_sequences(file, label, header, like=how.layout, needed=label is not None)
    if not found.values:
        raise ValueError(f"{file}: expected at least one sample, found none.")
    y = numbers_of(found.answers, how, str(file)) if found.answers else None
    raw = sequences_like(found.values, how, str(file))
    notes = (*found.notes, *_note_length(found.values, how), *_note_ranges(raw, how))
    return Raw(raw.x, y, raw.lengths, found.ids, notes)


def _note_ranges(raw: Raw, how: Preprocess) -> tuple[str, ...]:
    """Channels of which most values are far from all that were seen in training: Kelvin for Celsius, say."""
    if how.inputs is None or not raw.x.is_floating_point() or how.low == how.high:  # tokens, or nothing known
        return ()
    values = raw.x[steps_inside(raw.x, raw.lengths)[..., 0].expand(raw.x.shape[:2])]  # (k, c)
    low, high = (torch.tensor(line[: how.inputs]) for line in (how.low, how.high))
    far = (how.scaled(values) - (low + high) / 2).abs() > (high - low).clamp_min(1e-6)
    strange = (far.double().mean(0) > 0.5).nonzero()[:, 0].tolist()
    medians = {how.channels[c]: float(values[:, c].nanmedian()) for c in strange}
    return tuple(
        f"channel {name}: most values (median {middle:g}) are far from those of training; is it in another unit?"
        for name, middle in medians.items()
    )


def _note_length(values: Sequence[np.ndarray], how: Preprocess) -> list[str]:
    """A model reads every step; after more than it was trained on, a forecast is another than from one window."""
    most = max(map(len, values))
    return [f"sequences of up to {most} steps, read as a whole; in training {how.length}"] if most > how.length else []


def arrays_like(x: Any, how: Preprocess, y: Any = None, lengths: Any = None, where: str = "data") -> Raw:
    """Arrays, tensors, a list of sequences of any lengths, or texts where the model has a tokeniser."""
    if isinstance(x, str):
        raise TypeError(f"{where}: expected arrays, a list or the name of a file (.csv, .npz, ..), got {x[:40]!r}.")
    if isinstance(x, list | tuple) and x and all(isinstance(text, str) for text in x):
        raw = _texts(list(x), how, where)
    elif isinstance(x, list | tuple) and lengths is None and not how.pair:
        raw = sequences_like([_sequence(each, how, where) for each in x], how, where)
    else:
        raw = _fit_length(_inputs(x, how, where), None if lengths is None else _lengths(lengths, where), how, where)
    answers = None if y is None else _answers(y, how, where)
    if answers is not None and len(answers) != len(raw):
        raise ValueError(f"{where}: expected one label per sample, got {len(raw)} samples and {len(answers)} labels.")
    return Raw(raw.x, answers, raw.lengths)


def sequences_like(values: Sequence[np.ndarray], how: Preprocess, where: str) -> Raw:
    """One (t, c) array per sample, or (t,) tokens."""
    if not len(values):
        shape = (0, how.length) if how.inputs is None else (0, how.length, how.inputs)
        return Raw(torch.zeros(shape, dtype=torch.long if how.inputs is None else torch.float32))
    short = [i for i, value in enumerate(values) if not len(value)]
    if short:
        raise ValueError(f"{where}: expected at least one step in every sequence, got none in sequence {short[0]}.")
    if how.inputs is not None:
        wrong = next((value.shape[1] for value in values if value.shape[1] != how.inputs), None)
        if wrong is not None:
            raise ValueError(f"{where}: expected {how.inputs} channels ({', '.join(how.channels)}), got {wrong}.")
    x, lengths = pad(values, max(len(value) for value in values))
    return _fit_length(x, lengths, how, where)


def numbers_of(answers: Sequence[str], how: Preprocess, where: str = "data") -> Tensor:
    """Class labels as numbered in training; real targets unchanged."""
    if how.classes is None:
        values = [as_number(answer) for answer in answers]
        wrong = next((a for a, v in zip(answers, values, strict=True) if v is None), None)
        if wrong is not None:
            raise ValueError(f"{where}: expected numbers as labels, as in training, got {wrong!r}.")
        return torch.tensor(values, dtype=torch.float32)
    names = how.class_names or tuple(str(i) for i in range(how.classes))
    written = {name: i for i, name in enumerate(names)}
    by_value = {as_number(name): i for i, name in enumerate(names)} if None not in map(as_number, names) else {}
    found = [written.get(answer, by_value.get(as_number(answer))) for answer in answers]  # 1.0 is 1
    new = sorted({answer for answer, i in zip(answers, found, strict=True) if i is None})
    if new:
        raise ValueError(
            f"{where}: expected the classes of training, {list_some(names, 20)}; got {list_some(new, 20)}, which the "
            "model does not know."
        )
    return torch.tensor(found, dtype=torch.long)


# -- arrays ------------------------------------------------------------------------------------------------------------


def _arrays(file: Path, how: Preprocess) -> Raw:
    """x, or x_test of a file with parts."""
    arrays = read_arrays(file)
    ending = "" if "x" in arrays else "_test"
    if f"x{ending}" not in arrays:
        raise ValueError(f"{file}: expected an array x, got {', '.join(arrays) or 'none'}.")
    if not len(np.atleast_1d(arrays[f"x{ending}"])):
        raise ValueError(f"{file}: expected at least one sample, found none.")
    x = _order_channels(arrays[f"x{ending}"], names_in(arrays, "channel_names"), how, str(file))
    y = arrays.get(f"y{ending}")
    known = names_in(arrays, "class_names")
    if y is not None and known and y.dtype.kind in "iu":
        if y.size and not 0 <= int(y.min()) <= int(y.max()) < len(known):
            raise ValueError(f"{file}: expected y from 0 to {len(known) - 1}, as many as class_names has.")
        y = np.array(known)[y]  # the file's own numbering may differ
    return arrays_like(x, how, y, arrays.get(f"lengths{ending}"), str(file))


def _order_channels(x: np.ndarray, names: tuple[str, ...], how: Preprocess, where: str) -> np.ndarray:
    """Channels in the order of training, if both are named."""
    if not names or not how.layout.channels or x.ndim != 3:
        return x
    absent = [name for name in how.layout.channels if name not in names]
    if absent or x.shape[2] != len(names):
        message = f"of which {', '.join(absent)} missing" if absent else f"and as many names as channels ({x.shape[2]})"
        wanted = ", ".join(how.layout.channels)
        raise ValueError(f"{where}: expected the channels {wanted}, {message}; got {', '.join(names)}.")
    return x[..., [names.index(name) for name in how.layout.channels]]


def _inputs(x: Any, how: Preprocess, where: str) -> Tensor:
    value = tensor_of("x", x, where, gaps=True)
    if how.inputs is None:
        rank = 3 if how.pair else 2
        if value.is_floating_point() or value.dim() != rank:
            shape = "(n, 2, l)" if how.pair else "(n, l)"
            raise ValueError(f"{where}: expected tokens {shape}, got {tuple(value.shape)} {value.dtype}.")
        return value.long()
    value = value if value.dtype == torch.float64 else value.float()
    if value.dim() == 2 and how.inputs == 1:
        value = value[..., None]
    if value.dim() != 3 or value.shape[2] != how.inputs:
        named = f"{how.inputs} channels ({', '.join(how.channels)})"
        raise ValueError(
            f"{where}: expected x of shape (n, l, {how.inputs}), {named}, got {tuple(value.shape)}; a sample alone is "
            "x[None]."
        )
    return value


def _sequence(value: Any, how: Preprocess, where: str) -> np.ndarray:
    """(t, c) real, or (t,) tokens."""
    array = tensor_of("x", value, where, gaps=True).numpy()
    if how.inputs is None:
        if array.ndim != 1 or array.dtype.kind == "f":
            raise ValueError(f"{where}: expected a sequence of whole-number tokens, got {array.shape} {array.dtype}.")
        return array.astype(np.int64)
    array = array if array.dtype == np.float64 else array.astype(np.float32)
    array = array[:, None] if array.ndim == 1 and how.inputs == 1 else array
    if array.ndim != 2 or array.shape[1] != how.inputs:
        raise ValueError(
            f"{where}: expected sequences of shape (t, {how.inputs}), channels {', '.join(how.channels)}, got "
            f"{array.shape}."
        )
    return array


def _texts(texts: list[str], how: Preprocess, where: str) -> Raw:
    if how.tokeniser is None:
        raise TypeError(f"{where}: expected numbers, got text, and the model was saved without a tokeniser.")
    tokens, sizes = how.tokeniser.encode(texts, how.length)
    x, lengths = torch.from_numpy(np.ascontiguousarray(tokens)).long(), torch.from_numpy(sizes).long()
    return Raw(x, lengths=lengths if how.padded else None)


def _fit_length(x: Tensor, lengths: Tensor | None, how: Preprocess, where: str) -> Raw:
    """Padded to the training length if training was padded; lengths only if they differ."""
    n, l = x.shape[0], x.shape[-1] if how.inputs is None else x.shape[1]
    if not l:
        raise ValueError(f"{where}: expected at least one step in every sequence, got none.")
    if lengths is not None and (len(lengths) != n or (n and not 1 <= int(lengths.min()) <= int(lengths.max()) <= l)):
        raise ValueError(f"{where}: expected {n} lengths from 1 to {l}, got {lengths.tolist()[:8]}.")
    if not how.padded:
        return Raw(x, lengths=None if lengths is None or bool((lengths == l).all()) else lengths)
    if lengths is None:
        lengths = torch.full(x.shape[:2] if how.pair else (n,), l)
    more = max(0, how.length - l)
    return Raw(F.pad(x, (0, more) if how.inputs is None else (0, 0, 0, more)), lengths=lengths)


def _lengths(lengths: Any, where: str) -> Tensor:
    value = tensor_of("lengths", lengths, where)
    if value.is_floating_point():
        raise TypeError(f"{where}: expected whole numbers as lengths, got {value.dtype}.")
    return value.long()


def _answers(y: Any, how: Preprocess, where: str) -> Tensor:
    words = words_of(y)
    if words is not None:
        if how.classes is not None and not how.class_names:
            raise ValueError(
                f"{where}: expected classes from 0 to {how.classes - 1}, which had no names in training; got the word "
                f"{words.flat[0]!r}."
            )
        return numbers_of([str(word) for word in words.flat], how, where)
    value = tensor_of("y", y, where)
    if how.classes is None:
        return value.float()
    if how.class_names and None not in map(as_number, how.class_names):  # numbers as they are written, not their places
        return numbers_of([f"{number:.17g}" for number in value.flatten().tolist()], how, where)
    if value.is_floating_point() and not bool((value == value.round()).all()):
        raise ValueError(f"{where}: expected classes 0 to {how.classes - 1}, got numbers that are not whole.")
    value = value.long()
    if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < how.classes:
        got = f"{int(value.min())} to {int(value.max())}"
        raise ValueError(f"{where}: expected classes from 0 to {how.classes - 1}, got {got}.")
    return value
