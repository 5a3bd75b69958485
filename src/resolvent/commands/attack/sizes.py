"""Sizes of an attack and bounds of values as typed by a user: `8/255`, or `0.5,0.5,2` with one per channel.

They are in the model's units (standard deviations, if a run was scaled), or in the file's own: the run's saved
scaling converts the latter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from resolvent.attacks.autoattack.curve import ascending
from resolvent.attacks.threat.threat import Norm, Sizes, Threat
from resolvent.commands.attack.options import Attack
from resolvent.commands.certify.options import Certify
from resolvent.commands.run.train_options import TrainingOptions
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.usage.error import UsageError

Bounds = tuple[Sizes, Sizes]


Asked = Attack | Certify | TrainingOptions  # all that tells sizes and bounds; training takes one size


def number(option: str, text: str) -> float:
    """`8/255` or `0.031`; finite."""
    try:
        value = float(Fraction(text.replace(" ", ""))) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{option} must be a number such as 0.031 or 8/255, and finite; got {text!r}.")
    return value


def size(option: str, text: str) -> Sizes:
    """A number, or a tuple with one per channel; not negative."""
    line = tuple(number(option, part) for part in text.split(","))
    if min(line) < 0:
        raise UsageError(f"{option} must not be negative, got {text}.")
    return line[0] if len(line) == 1 else line


def threats_of(asked: Asked, norm: Norm, learned: Preprocess | None, usual: str) -> tuple[Threat, ...]:
    """A threat per size, smallest first, with the requested bounds."""
    bounds = bounds_of(asked, learned)
    return tuple(Threat(norm, eps, bounds) for eps in ascending(sizes_of(asked, learned, usual)))


def sizes_of(asked: Asked, learned: Preprocess | None, usual: str) -> tuple[Sizes, ...]:
    """Every size of --eps or --eps-raw in the units of the model; `usual` if neither is given."""
    if asked.eps is not None and asked.eps_raw is not None:
        raise UsageError("--eps is in the units of the model, --eps-raw in those of the file; give one of them.")
    if asked.eps_raw is not None:
        return tuple(_scale_sizes(size("--eps-raw", text), learned) for text in _list_texts("--eps-raw", asked.eps_raw))
    return tuple(size("--eps", text) for text in _list_texts("--eps", usual if asked.eps is None else asked.eps))


def bounds_of(asked: Asked, learned: Preprocess | None) -> Bounds | None:
    """--bounds or --bounds-raw in the units of the model; None if neither is given."""
    if asked.bounds is not None and asked.bounds_raw is not None:
        raise UsageError("--bounds is in the units of the model, --bounds-raw in those of the file; give one of them.")
    given, option = (asked.bounds, "--bounds") if asked.bounds_raw is None else (asked.bounds_raw, "--bounds-raw")
    if given is None:
        return None
    low, high = (_bound(option, text) for text in given)
    pairs = zip(*(_even(line, max(len(low), len(high))) for line in (low, high)), strict=True)
    if len({len(low), len(high)} - {1}) > 1 or any(a > b for a, b in pairs):
        raise UsageError(f"{option} must be LOW HIGH with LOW below HIGH in every channel, got {given[0]} {given[1]}.")
    if asked.bounds_raw is not None:
        low, high = (_scale_line(line, learned, flag) for line, flag in ((low, 0.0), (high, 1.0)))
    return _one(low), _one(high)


def _list_texts(option: str, texts: str | Sequence[str]) -> Sequence[str]:
    texts = (texts,) if isinstance(texts, str) else texts
    if not texts:
        raise UsageError(f"{option} needs a size, such as 8/255, or several.")
    return texts


def _bound(option: str, text: str) -> tuple[float, ...]:
    """Like a size, of any sign; inf and -inf mean unbounded."""
    ends = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
    return tuple(ends[part.strip()] if part.strip() in ends else number(option, part) for part in text.split(","))


def _scale_sizes(raw: Sizes, learned: Preprocess | None) -> Sizes:
    """A size in the file's units; missing-value flags are not channels of the file, and are unchanged."""
    if learned is None:
        return raw
    line = _channels("--eps-raw", line_of(raw), learned)
    return _one(tuple(e / w for e, w in zip(line, _widths(learned), strict=True)) + (0.0,) * len(learned.flagged))


def _scale_line(line: tuple[float, ...], learned: Preprocess | None, flag: float) -> tuple[float, ...]:
    if learned is None:
        return line
    line, centres = _channels("--bounds-raw", line, learned), learned.centre
    centres = centres if learned.scale != "none" else (0.0,) * len(line)
    moved = tuple((v - c) / w for v, c, w in zip(line, centres, _widths(learned), strict=True))
    return moved + (flag,) * len(learned.flagged)


def _channels(option: str, line: tuple[float, ...], learned: Preprocess) -> tuple[float, ...]:
    count = learned.inputs
    if count is None:
        raise UsageError(f"{option}: this model reads tokens, which have no units.")
    if len(line) not in (1, count):
        raise UsageError(
            f"{option} holds {len(line)} values, but the file has {count} channels ({', '.join(learned.channels)}); "
            "give one for each, or one for all."
        )
    return _even(line, count)


def _widths(learned: Preprocess) -> tuple[float, ...]:
    return learned.width if learned.scale != "none" else (1.0,) * len(learned.width)


def _even(line: tuple[float, ...], count: int) -> tuple[float, ...]:
    return line * count if len(line) == 1 else line


def line_of(given: Sizes) -> tuple[float, ...]:
    return given if isinstance(given, tuple) else (float(given),)


def _one(line: tuple[float, ...]) -> Sizes:
    """A single number if all are equal."""
    return line[0] if len(set(line)) == 1 else line
