"""From a user's samples to a Task: missing values, split, scale and bounds, each by a stated rule.

In this order: missing values are filled; samples are split by a seed, every class in proportion; channels are scaled by
what the training part holds; bounds are the range of the training part, widened where another part goes beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from resolvent.data.task import Bounds, Split, Task

Missing = Literal["refuse", "zero", "ffill", "flag"]
Scale = Literal["none", "standard", "minmax"]
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Preparation:
    """How a user's data becomes a task.

    fractions   shares of validation and test; the rest is for training
    seed        of the split
    bounds      valid range of an input value, which an attack keeps; "infer": the range that the training part has
    missing     "refuse", or fill with "zero" or with the last value of the channel ("ffill"; 0 before the first), or
                "flag": the same with one more channel for each that has gaps, 1 where the value was missing
    scale       "standard": each channel to mean 0 and deviation 1; "minmax": to the range 0 to 1; by the training part
    """

    fractions: tuple[float, float] = (0.1, 0.2)
    seed: int = 0
    bounds: Bounds | Literal["infer"] | None = None
    missing: Missing = "refuse"
    scale: Scale = "none"

    def __post_init__(self) -> None:
        for name, value, known in (("missing", self.missing, Missing), ("scale", self.scale, Scale)):
            if value not in get_args(known):
                raise ValueError(f"data: {name} must be one of {', '.join(map(repr, get_args(known)))}, got {value!r}.")
        if isinstance(self.bounds, str) and self.bounds != "infer":
            raise ValueError(f"data: bounds must be a pair (low, high), 'infer' or None, got {self.bounds!r}.")

    @classmethod
    def of(cls, where: str, **options: Any) -> Preparation:
        known = [field.name for field in fields(cls)]
        wrong = [name for name in options if name not in known]
        if wrong:
            raise TypeError(f"{where}: unknown option {wrong[0]!r}; known: {', '.join(known)}.")
        return cls(**options)


@dataclass(frozen=True, eq=False)
class Own:
    """A user's samples: x (n, l, c) float32, NaN where missing, or (n, l) int64; y (n, ...); lengths (n,) or None."""

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None


def split_indices(y: Tensor, fractions: Sequence[float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample ids of train, validation and test. Whole-number y is split class by class."""
    from resolvent.data.order import shuffled

    validation, test = _checked(fractions)
    order = torch.from_numpy(shuffled(len(y), seed))
    labels = y.new_zeros(len(y), dtype=torch.long) if y.is_floating_point() else y
    share = torch.zeros(len(y), dtype=torch.float64)
    for label in labels.unique():
        members = order[labels[order] == label]
        share[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    share = share[order]
    return order[share >= validation + test], order[(share >= test) & (share < validation + test)], order[share < test]


def prepare(
    parts: Mapping[str, Own], how: Preparation, *, name: str, source: str, class_names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Task:  # fmt: skip
    """`parts` holds "all", or "train" with "test" and perhaps "validation"."""
    filled, told = _filled(parts, how.missing)
    splits = _splits(filled, how)
    told += _scaled(splits, how.scale)
    bounds, more = _bounds(splits, how.bounds)
    first = splits["train"]
    real = first.x.is_floating_point()
    return Task(
        name,
        splits["train"],
        splits["validation"],
        splits["test"],
        length=first.x.shape[1],
        channels=first.x.shape[2] if real else None,
        vocabulary=None if real else max(_top(split.x) for split in splits.values()),
        classes=None if first.y.is_floating_point() else max(len(class_names), *(_top(s.y) for s in splits.values())),
        class_names=tuple(class_names),
        bounds=bounds,
        licence="the user's own",
        source=source,
        notes=(*notes, *told, *more),
    )


def _top(values: Tensor) -> int:
    return int(values.max()) + 1 if values.numel() else 0


# -- missing values ----------------------------------------------------------------------------------------------------


def _filled(parts: Mapping[str, Own], rule: Missing) -> tuple[dict[str, Own], list[str]]:
    gaps = {name: part.x.isnan() for name, part in parts.items() if part.x.is_floating_point()}
    for part in parts.values():
        if part.x.is_floating_point() and bool(part.x.isinf().any()):
            raise ValueError(f"data: x holds {int(part.x.isinf().sum())} infinite values; clip or drop them first.")
    count = sum(int(gap.sum()) for gap in gaps.values())
    if not count:
        return dict(parts), []
    if rule == "refuse":
        share = count / sum(gap.numel() for gap in gaps.values())
        raise ValueError(
            f"data: x holds {count} missing or infinite values ({share:.1%}); fill or drop them first, or say how with "
            "missing='zero', 'ffill' or 'flag' (--missing on the command line)."
        )
    flagged = torch.stack([gap.any(0).any(0) for gap in gaps.values()]).any(0) if rule == "flag" else None
    done = {name: Own(_fill(part.x, gaps[name], rule, flagged), part.y, part.lengths) for name, part in parts.items()}
    return done, [f"{count} missing values filled by {rule!r}"]


def _fill(x: Tensor, gap: Tensor, rule: Missing, flagged: Tensor | None) -> Tensor:
    if rule == "zero":
        return x.nan_to_num(0.0)
    steps = torch.arange(x.shape[1])[None, :, None].expand_as(x)
    last = torch.where(gap, -1, steps).cummax(1).values  # the latest step with a value; -1: none yet
    value = x.nan_to_num(0.0).gather(1, last.clamp(min=0)) * (last >= 0)
    return value if flagged is None else torch.cat([value, gap[..., flagged].float()], -1)


# -- parts -------------------------------------------------------------------------------------------------------------


def _splits(parts: Mapping[str, Own], how: Preparation) -> dict[str, Split]:
    whole = {name: Split(part.x, part.y, part.lengths) for name, part in parts.items()}
    if "all" in whole:
        indices = split_indices(whole["all"].y, how.fractions, how.seed)
        return {part: whole["all"].select(index) for part, index in zip(PARTS, indices, strict=True)}
    if "validation" in whole:
        return whole
    train, validation, _ = split_indices(whole["train"].y, (how.fractions[0], 0.0), how.seed)
    return whole | {"train": whole["train"].select(train), "validation": whole["train"].select(validation)}


def _checked(fractions: Sequence[float]) -> tuple[float, float]:
    if len(fractions) != 2 or min(fractions) < 0 or sum(fractions) >= 1:
        raise ValueError(
            f"from_arrays: expected the shares of validation and test, below 1 together, got {tuple(fractions)}."
        )
    return fractions[0], fractions[1]


# -- scale and bounds --------------------------------------------------------------------------------------------------


def counted(split: Split) -> Tensor:
    """The values that count, all samples and steps in a row: (k, c)."""
    if split.lengths is None:
        return split.x.flatten(0, 1)
    return split.x[torch.arange(split.x.shape[1]) < split.lengths[:, None]]


def _scaled(splits: dict[str, Split], rule: Scale) -> list[str]:
    """Changes the splits in place."""
    train = splits["train"]
    if rule == "none" or not len(train):
        return []
    if not train.x.is_floating_point():
        raise ValueError("data: expected real input to scale, got tokens; leave scale out.")
    values = counted(train).double()
    if rule == "standard":
        centre, width = values.mean(0), values.std(0, correction=0)
    else:
        centre = values.min(0).values
        width = values.max(0).values - centre
    width = torch.where(width > 0, width, 1.0)  # a channel that never changes becomes 0
    for name, split in splits.items():
        x = ((split.x.double() - centre) / width).float()
        if split.lengths is not None:
            x = x * (torch.arange(x.shape[1]) < split.lengths[:, None])[..., None]
        splits[name] = Split(x, split.y, split.lengths)
    return [f"channels scaled by {rule!r} of the training part"]


def _bounds(splits: Mapping[str, Split], wish: Bounds | str | None) -> tuple[Bounds | None, list[str]]:
    if wish != "infer":
        return wish, []  # type: ignore[return-value]
    train = splits["train"]
    if not train.x.is_floating_point() or not len(train):
        return None, []
    own = _range(train.x)  # padding, which is zero, included: an attack finds it inside
    every = [_range(split.x) for split in splits.values() if len(split)]
    bounds = (min(low for low, _ in every), max(high for _, high in every))
    beyond = "" if bounds == own else f", widened from {own[0]:g} to {own[1]:g} for values of the other parts"
    return bounds, [f"bounds are the range of the training part{beyond}"]


def _range(x: Tensor) -> Bounds:
    return float(x.min()), float(x.max())
