"""The `.ts` format of the UEA and UCR archives: header tags, then one sample per line.

@problemName Gestures
@univariate false
@classLabel true left right
@data
0.1,0.2,?:1.0,1.1,1.2:left          # dimensions between colons, steps between commas, ? where missing
"""

from __future__ import annotations

import numpy as np

from resolvent.data.readers.sequences import Sequences, as_number
from resolvent.data.readers.table import numbers

_TAGS = ("problemname", "timestamps", "missing", "univariate", "dimensions", "dimension", "equallength", "serieslength",
         "classlabel", "targetlabel")  # fmt: skip


def read_ts(text: str, where: str, needed: bool = True) -> Sequences:
    """Every sample, with the header checked against the lines; targets if `needed`, or if the header declares
    them."""
    lines = text.split("\n")
    tags, start = _header(lines, where)
    if _first(tags, "timestamps") == "true":
        raise ValueError(
            f"{where}: expected values only, got time stamps (@timeStamps true); write the values without them."
        )
    answered = needed or "true" in (_first(tags, "classlabel"), _first(tags, "targetlabel"))
    classes = _classes(tags, where) if answered else None
    values: list[np.ndarray] = []
    answers: list[str] = []
    for number, line in enumerate(lines[start:], start=start + 1):
        if line.strip() and not line.lstrip().startswith(("#", "%")):
            place = f"{where}, line {number}"
            value, answer = _sample(line.strip() if answered else f"{line.strip()}:0", place)
            if classes and answer not in classes:
                raise ValueError(f"{place}: expected one of the classes {', '.join(classes)}, got {answer!r}.")
            if not classes and as_number(answer) is None:
                raise ValueError(f"{place}: expected a number as the label (@targetLabel true), got {answer!r}.")
            _check(value, tags, place, values)
            values.append(value)
            answers += [answer] if answered else []
    return Sequences(values, answers, where, classes)


def _header(lines: list[str], where: str) -> tuple[dict[str, list[str]], int]:
    """Tags in lower case with their arguments, and the first line after @data."""
    tags: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().lstrip("\ufeff")
        if not text or text.startswith(("#", "%")):
            continue
        name, *words = text.split()
        if name.lower() == "@data":
            return tags, number
        if name[0] != "@" or name[1:].lower() not in _TAGS:
            raise ValueError(f"{where}, line {number}: expected a tag (@problemName, .., @data), got {text[:40]!r}.")
        keep_case = name[1:].lower() in ("classlabel", "problemname")
        tags[name[1:].lower()] = words if keep_case else [word.lower() for word in words]
    raise ValueError(f"{where}: expected a line @data before the samples, found none.")


def _first(tags: dict[str, list[str]], name: str) -> str:
    return next(iter(tags.get(name, [])), "").lower()


def _classes(tags: dict[str, list[str]], where: str) -> tuple[str, ...]:
    """The names of the classes; none: the targets are numbers."""
    words = tags.get("classlabel", [])
    if _first(tags, "classlabel") == "true":
        if len(words) < 2 or len(set(words)) < len(words):
            raise ValueError(f"{where}: expected the names of the classes after @classLabel true, got {words[1:]}.")
        return tuple(words[1:])
    if _first(tags, "targetlabel") == "true":
        return ()
    raise ValueError(f"{where}: expected labels (@classLabel true .. or @targetLabel true), got none; they are needed.")


def _sample(line: str, where: str) -> tuple[np.ndarray, str]:
    """(t, c) and the target. Shorter dimensions of a sample are padded with NaN at the end."""
    *dimensions, answer = line.split(":")
    if not dimensions or not answer.strip():
        raise ValueError(f"{where}: expected dimensions and a label between colons, got {line[:40]!r}.")
    if "(" in line:
        raise ValueError(f"{where}: expected plain values, got time stamps in brackets.")
    series = [numbers(text.split(","), where) for text in dimensions]
    out = np.full((max(len(s) for s in series), len(series)), np.nan)
    for channel, s in enumerate(series):
        out[: len(s), channel] = s
    return out, answer.strip()


def _check(value: np.ndarray, tags: dict[str, list[str]], where: str, before: list[np.ndarray]) -> None:
    wanted = {"univariate": 1} if _first(tags, "univariate") == "true" else {}
    wanted |= {name: int(_first(tags, name)) for name in ("dimensions", "dimension") if _first(tags, name).isdecimal()}
    for name, count in wanted.items():
        if value.shape[1] != count:
            raise ValueError(f"{where}: expected {count} dimensions (@{name}), got {value.shape[1]}.")
    if before and value.shape[1] != before[0].shape[1]:
        raise ValueError(f"{where}: expected {before[0].shape[1]} dimensions as before, got {value.shape[1]}.")
    length = _first(tags, "serieslength")
    if _first(tags, "equallength") == "true" and length.isdecimal() and len(value) != int(length):
        raise ValueError(f"{where}: expected {length} steps (@seriesLength), got {len(value)}.")
    if _first(tags, "missing") == "false" and np.isnan(value).any():
        raise ValueError(f"{where}: expected no missing value (@missing false), got {int(np.isnan(value).sum())}.")
