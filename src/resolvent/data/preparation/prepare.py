"""From a user's samples to a Task: split, scale, missing values and bounds, each by a documented rule.

In this order: samples are split by a seed, stratified by class; channels are scaled by the observed values of the
training part; gaps are filled; bounds are the range observed in the training part, widened where another part exceeds
it. Padding and gaps are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from resolvent.data.order import shuffle
from resolvent.data.preparation.groups import grouped_indices, require_apart
from resolvent.data.preparation.learn import learn, pieces
from resolvent.data.preparation.mapped import Rows, prepare_rows
from resolvent.data.preparation.preprocess import Bounds, Layout, Missing, Preprocess, Scale
from resolvent.data.task import Split, Task
from resolvent.usage.numbers import check_choice

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Preparation:
    """How a user's data become a task.

    fractions   shares of validation and test; the rest is for training
    seed        of the split
    bounds      valid range of an input value, within which an attack stays; "infer": the range of the training part
    missing     "refuse", or fill: with "zero", 0 after scaling (with "standard" the training mean); with the
                "mean" observed in the training part; with the last value of the channel ("ffill"; that mean before
                the first); "flag": the same with one more channel for each that has gaps, 1 where the value was missing
    scale       "standard": each channel to mean 0 and deviation 1; "minmax": to the range 0 to 1; fitted on training
    """

    fractions: tuple[float, float] = (0.1, 0.2)
    seed: int = 0
    bounds: Bounds | Literal["infer"] | None = None
    missing: Missing = "refuse"
    scale: Scale = "none"

    def __post_init__(self) -> None:
        check_choice("data", "missing", self.missing, get_args(Missing))
        check_choice("data", "scale", self.scale, get_args(Scale))
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
    """A user's samples: x (n, l, c) real, NaN where missing, or (n, l) int64; y (n, ...); lengths (n,) or None.

    groups   one word per sample: a group stays in one part of a split; none: samples are split individually
    """

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None
    groups: tuple[str, ...] = ()

    def whole(self) -> Split:
        return Split(self.x, self.y, self.lengths)


@dataclass(frozen=True, eq=False)
class OnDisk:
    """The same with x memory-mapped: it is read in pieces and stays on disk."""

    rows: Rows
    groups: tuple[str, ...] = ()

    @property
    def y(self) -> Tensor:
        return self.rows.y

    def whole(self) -> Rows:
        return self.rows


def split_indices(y: Tensor, fractions: Sequence[float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample ids of train, validation and test. Integer y is stratified by class."""
    validation, test = _check_fractions(fractions)
    order = torch.from_numpy(shuffle(len(y), seed))
    labels = y.new_zeros(len(y), dtype=torch.long) if y.is_floating_point() else y
    share = torch.zeros(len(y), dtype=torch.float64)
    for label in labels.unique():
        members = order[labels[order] == label]
        share[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    share = share[order]
    return order[share >= validation + test], order[(share >= test) & (share < validation + test)], order[share < test]


def prepare(
    parts: Mapping[str, Own | OnDisk], how: Preparation, *, name: str, source: str, class_names: Sequence[str] = (),
    notes: Sequence[str] = (), layout: Layout | None = None,
) -> Task:  # fmt: skip
    """`parts` has "all", or "train" with "test" and optionally "validation"."""
    raw = _splits(parts, how)
    answers = torch.cat([split.y for split in raw.values()])
    classes = None if answers.is_floating_point() else max(len(class_names), int(answers.max()) + 1)
    _check_classes(classes, len(answers), class_names)
    first = raw["train"]
    if first.real if isinstance(first, Rows) else first.x.is_floating_point():
        ready, learnt = learn(raw, how.missing, how.scale, how.bounds, layout or Layout())
    else:
        ready, learnt = _tokens(raw, how), []
    ready = replace(ready, classes=classes, class_names=tuple(class_names))
    splits = _prepare_splits(raw, ready)
    train = splits["train"]
    return Task(
        name,
        train,
        splits["validation"],
        splits["test"],
        length=train.x.shape[1],
        channels=None if ready.inputs is None else train.x.shape[2],
        vocabulary=ready.vocabulary,
        classes=classes,
        class_names=tuple(class_names),
        bounds=ready.bounds,
        licence="the user's own",
        source=source,
        notes=(*notes, *_count_parts(parts), *_find_shared(raw), *learnt),
        preprocess=ready,
    )


def _check_classes(classes: int | None, samples: int, names: Sequence[str]) -> None:
    """Numbers that are no numbers of classes (codes, times) would ask for a model of as many outputs."""
    if names and len(names) != classes:
        raise ValueError(f"data: expected a name for each of {classes} classes, got {', '.join(names)}.")
    if classes is not None and classes > max(1000, 10 * samples):
        raise ValueError(
            f"data: expected classes numbered from 0, got numbers up to {classes - 1:,} for {samples:,} samples; "
            "number the classes from 0 on, or give their names as text."
        )


def _count_parts(parts: Mapping[str, Own | OnDisk]) -> list[str]:
    found = {group for part in parts.values() for group in part.groups}
    return [f"{len(found)} groups, each in one part of the split"] if found else []


def _find_shared(raw: Mapping[str, Split | Rows]) -> list[str]:
    """Test samples that were trained on make a test look better than it is; of samples in memory."""
    train, test = raw["train"], raw["test"]
    if isinstance(train, Rows) or isinstance(test, Rows):
        return []
    seen = {hash(row.tobytes()) for row in train.x.numpy()}
    both = sum(hash(row.tobytes()) in seen for row in test.x.numpy())
    return [f"{both} of {len(test)} test samples are in the training part, too"] if both else []


def _prepare_splits(raw: Mapping[str, Split | Rows], ready: Preprocess) -> dict[str, Split]:
    """The splits in the form a model reads: in memory, or mapped files for rows on disk."""
    found = {part: split for part, split in raw.items() if isinstance(split, Rows)}
    whole = {part: split for part, split in raw.items() if isinstance(split, Split)}
    made = {part: Split(ready(split.x, split.lengths), split.y, split.lengths) for part, split in whole.items()}
    return made | (prepare_rows(found, ready) if found else {})


def _tokens(raw: Mapping[str, Split | Rows], how: Preparation) -> Preprocess:
    if how.scale != "none":
        raise ValueError("data: expected real input to scale, got tokens; leave scale out.")
    every = [x.aminmax() for split in raw.values() if len(split) for x, _ in pieces(split)]
    lowest, top = min(int(low) for low, _ in every), max(int(high) for _, high in every) + 1
    if lowest < 0:
        raise ValueError(
            f"data: expected tokens from 0 on, got {lowest}; number them from 0, or give x as real numbers if they are "
            "measurements."
        )
    padded, first = any(split.lengths is not None for split in raw.values()), raw["train"]
    length = first.shape[1] if isinstance(first, Rows) else first.x.shape[1]
    bounds = None if isinstance(how.bounds, str) else how.bounds
    return Preprocess(vocabulary=top, length=length, padded=padded, bounds=bounds)


# -- parts -------------------------------------------------------------------------------------------------------------


def _splits(parts: Mapping[str, Own | OnDisk], how: Preparation) -> dict[str, Split | Rows]:
    whole = {name: part.whole() for name, part in parts.items()}
    require_apart({name: part.groups for name, part in parts.items()})
    if "all" in whole:
        indices = _indices(parts["all"], how.fractions, how.seed)
        return {part: whole["all"].select(index) for part, index in zip(PARTS, indices, strict=True)}
    if "validation" in whole:
        return whole
    train, validation, _ = _indices(parts["train"], (how.fractions[0], 0.0), how.seed)
    return whole | {"train": whole["train"].select(train), "validation": whole["train"].select(validation)}


def _indices(part: Own | OnDisk, fractions: Sequence[float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    if part.groups:
        return grouped_indices(part.y, part.groups, _check_fractions(fractions), seed)
    return split_indices(part.y, fractions, seed)


def _check_fractions(fractions: Sequence[float]) -> tuple[float, float]:
    if len(fractions) != 2 or min(fractions) < 0 or sum(fractions) >= 1:
        raise ValueError(
            f"from_arrays: expected the shares of validation and test, below 1 together, got {tuple(fractions)}."
        )
    return fractions[0], fractions[1]
