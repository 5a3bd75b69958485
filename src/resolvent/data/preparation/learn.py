"""What the training part teaches about raw values: scale, what stands for a gap, the range of each channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

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
    raw: Mapping[str, Split], missing: Missing, scale: Scale, bounds: Bounds | Literal["infer"] | None, layout: Layout
) -> tuple[Preprocess, list[str]]:
    """From splits whose x (n, l, c) is raw, NaN where missing; and what was done, for people."""
    train = raw["train"]
    values = select_observed(train).double()  # (k, c)
    mean, centre, width = _statistics(values, scale)
    gaps = {part: split.x.isnan() & steps_inside(split.x, split.lengths) for part, split in raw.items()}
    count = sum(int(gap.sum()) for gap in gaps.values())
    _refuse(raw, count, missing)
    flagged: tuple[int, ...] = ()
    if count and missing == "flag":
        flagged = tuple(torch.stack([gap.any(0).any(0) for gap in gaps.values()]).any(0).nonzero()[:, 0].tolist())
    made = Preprocess(
        inputs=train.x.shape[2],
        layout=layout,
        missing=missing,
        flagged=flagged,
        scale=scale,
        centre=tuple(centre.tolist()),
        width=tuple(width.tolist()),
        fill=tuple(((mean - centre) / width).float().tolist()),
        **_no_range(train.x.shape[2] + len(flagged)),
        length=train.x.shape[1],
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


def _refuse(raw: Mapping[str, Split], count: int, missing: Missing) -> None:
    infinite = sum(int(((s.x.abs() > LARGEST) & steps_inside(s.x, s.lengths)).sum()) for s in raw.values())
    if infinite:
        raise ValueError(f"data: x holds {infinite} infinite values; clip or drop them first.")
    if count and missing == "refuse":
        refuse_gaps(count, sum(select_observed(split).numel() for split in raw.values()))


def select_observed(split: Split) -> Tensor:
    """All samples and steps in a row, padding left out: (k, c), NaN where missing."""
    return split.x[steps_inside(split.x, split.lengths)[..., 0].expand(split.x.shape[:2])]


def _statistics(values: Tensor, scale: Scale) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, centre and width of each channel (c,) of values (k, c), of what is not missing."""
    columns = [values] if not bool(values.isnan().any()) else [v[~v.isnan(), None] for v in values.unbind(1)]
    mean = torch.cat([_of(v, lambda v: v.mean(0)) for v in columns])
    if scale == "none":
        return mean, torch.zeros_like(mean), torch.ones_like(mean)
    if scale == "standard":
        centre, width = mean, torch.cat([_of(v, lambda v: v.std(0, correction=0)) for v in columns])
    else:
        centre = torch.cat([_of(v, lambda v: v.min(0).values) for v in columns])
        width = torch.cat([_of(v, lambda v: v.max(0).values) for v in columns]) - centre
    return mean, centre, torch.where(width > 0, width, 1.0)  # a channel that never changes becomes 0


def _of(values: Tensor, statistic: Any) -> Tensor:
    found: Tensor = statistic(values) if len(values) else values.new_zeros(values.shape[1])
    return found


def _no_range(channels: int) -> dict[str, Any]:
    return {"low": (0.0,) * channels, "high": (0.0,) * channels}


def _range(made: Preprocess, splits: list[Split]) -> tuple[Tensor, Tensor]:
    """The least and the largest scaled value of each raw channel over these splits (c,); 0 where there is none."""
    values = made.scaled(torch.cat([select_observed(split) for split in splits]))
    if not len(values):
        return torch.zeros(values.shape[1]), torch.zeros(values.shape[1])
    gap = values.isnan()
    low, high = values.masked_fill(gap, torch.inf).amin(0), values.masked_fill(gap, -torch.inf).amax(0)
    return torch.where(gap.all(0), 0.0, low), torch.where(gap.all(0), 0.0, high)


def _with_gaps(made: Preprocess, low: Tensor, high: Tensor, gaps: bool) -> dict[str, Any]:
    """The range of every channel that the model reads: what stands for a gap and the flags included."""
    if gaps and made.missing == "zero":
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    flags = len(made.flagged)
    return {"low": (*low.tolist(), *(0.0,) * flags), "high": (*high.tolist(), *(1.0,) * flags)}
