"""What is learned from the raw values of the training part: scale, fill values, the range of each channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.data.preparation.mapped import Rows
from resolvent.data.preparation.preprocess import (
    LARGEST,
    Bounds,
    Layout,
    Missing,
    Preprocess,
    Scale,
    refuse_gaps,
    steps_inside,
)
from resolvent.data.task import Split


def learn(
    raw: Mapping[str, Split | Rows],
    missing: Missing,
    scale: Scale,
    bounds: Bounds | Literal["infer"] | None,
    layout: Layout,
) -> tuple[Preprocess, list[str]]:
    """From splits whose x (n, l, c) is raw, NaN where missing; also returns notes on what was done.

    Splits on disk are read in pieces, in several passes.
    """
    train = raw["train"]
    steps, channels = train.shape[1:] if isinstance(train, Rows) else train.x.shape[1:]
    mean, centre, width = _statistics(train, scale, channels)
    gaps = torch.stack([_gaps(split, channels) for split in raw.values()]).sum(0)  # (c,)
    count = int(gaps.sum())
    _refuse(raw, count, missing)
    flagged = tuple(gaps.nonzero()[:, 0].tolist()) if count and missing == "flag" else ()
    made = Preprocess(
        inputs=channels,
        layout=layout,
        missing=missing,
        flagged=flagged,
        scale=scale,
        centre=tuple(centre.tolist()),
        width=tuple(width.tolist()),
        fill=tuple(((mean - centre) / width).float().tolist()),
        low=(0.0,) * (channels + len(flagged)),
        high=(0.0,) * (channels + len(flagged)),
        length=steps,
        padded=any(split.lengths is not None for split in raw.values()),
    )
    own = _range(made, [train])
    low, high = _range(made, list(raw.values()))
    made = replace(made, **_with_gaps(made, low, high, count > 0))
    notes = [f"{count} missing values filled by {missing!r}"] if count and missing != "refuse" else []
    notes += [f"channels scaled by {scale!r} of the training part"] if scale != "none" and len(train) else []
    if bounds != "infer":
        return replace(made, bounds=bounds), notes
    if not len(train):
        return made, notes
    beyond = _explain_widening(own, (low, high), made)
    bounds = (min(made.low), max(made.high))
    return replace(made, bounds=bounds, inferred=True), [*notes, f"bounds are the range of the training part{beyond}"]


def _explain_widening(own: tuple[Tensor, Tensor], every: tuple[Tensor, Tensor], made: Preprocess) -> str:
    """Why the bounds are not those of the training part alone."""
    first, seen = ((float(low.min()), float(high.max())) for low, high in (own, every))
    beyond = "" if seen == first else f", widened from {first[0]:g} to {first[1]:g} for values of the other parts"
    if seen != (min(made.low), max(made.high)):
        beyond += ", and to what stands for missing values"
    return beyond


def _gaps(split: Split | Rows, channels: int) -> Tensor:
    """The number of missing values of each channel (c,)."""
    found = torch.zeros(channels, dtype=torch.int64)
    for x, lengths in pieces(split):
        found += (x.isnan() & steps_inside(x, lengths)).sum((0, 1))
    return found


def _refuse(raw: Mapping[str, Split | Rows], count: int, missing: Missing) -> None:
    every = map(pieces, raw.values())
    infinite = sum(int(((x.abs() > LARGEST) & steps_inside(x, steps)).sum()) for each in every for x, steps in each)
    if infinite:
        raise ValueError(f"data: x holds {infinite} infinite values; clip or drop them first.")
    if count and missing == "refuse":
        refuse_gaps(count, sum(found.numel() for split in raw.values() for found in observed_values(split)))


def pieces(split: Split | Rows) -> Iterator[tuple[Tensor, Tensor | None]]:
    """x and lengths: at once if in memory, in pieces if on disk."""
    return split.pieces() if isinstance(split, Rows) else iter([(split.x, split.lengths)])


def observed_values(split: Split | Rows) -> Iterator[Tensor]:
    """All steps of all samples without padding: (k, c) per piece, NaN where missing."""
    for x, lengths in pieces(split):
        yield x[steps_inside(x, lengths)[..., 0].expand(x.shape[:2])]


def _statistics(train: Split | Rows, scale: Scale, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, centre and width of each channel (c,), of what is not missing; the deviation in a pass of its own."""
    count, total = torch.zeros(2, channels, dtype=torch.float64)
    low, high = torch.full((2, channels), torch.inf, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]])
    for values in map(Tensor.double, observed_values(train)):
        gap = values.isnan()
        count += (~gap).sum(0)
        total += values.masked_fill(gap, 0.0).sum(0)
        if len(values):
            low = torch.minimum(low, values.masked_fill(gap, torch.inf).amin(0))
            high = torch.maximum(high, values.masked_fill(gap, -torch.inf).amax(0))
    # between the two: a channel that never changes has no deviation, and not the rounding of its mean
    mean = torch.where(count > 0, (total / count.clamp(min=1)).clamp(low, high), 0.0)
    if scale == "none":
        return mean, torch.zeros_like(mean), torch.ones_like(mean)
    centre, width = torch.where(count > 0, low, 0.0), high - low
    if scale == "standard":
        squares = torch.zeros_like(mean)
        for values in map(Tensor.double, observed_values(train)):
            squares += (values - mean).square().nansum(0)
        centre, width = mean, (squares / count.clamp(min=1)).sqrt()
    return mean, centre, torch.where(width > 0, width, 1.0)


def _range(made: Preprocess, splits: list[Split | Rows]) -> tuple[Tensor, Tensor]:
    """The smallest and largest scaled value of each raw channel over these splits (c,); 0 if there is none."""
    low, high = torch.full((made.inputs or 0,), torch.inf), torch.full((made.inputs or 0,), -torch.inf)
    for values in (made.scaled(found) for split in splits for found in observed_values(split) if len(found)):
        gap = values.isnan()
        low = torch.minimum(low, values.masked_fill(gap, torch.inf).amin(0))
        high = torch.maximum(high, values.masked_fill(gap, -torch.inf).amax(0))
    none = low > high
    return torch.where(none, 0.0, low), torch.where(none, 0.0, high)


def _with_gaps(made: Preprocess, low: Tensor, high: Tensor, gaps: bool) -> dict[str, Any]:
    """The range of every channel that the model reads: including fill values and flags."""
    if gaps and made.missing == "zero":
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    flags = len(made.flagged)
    return {"low": (*low.tolist(), *(0.0,) * flags), "high": (*high.tolist(), *(1.0,) * flags)}
