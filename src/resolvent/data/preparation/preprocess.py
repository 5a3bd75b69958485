"""Preprocessing of raw values for a model: learned on the training part, saved with the run, applied to new data.

    ready = task.preprocess(x, lengths)        # x (n, l, c) raw, NaN where missing -> what the model reads

Channels are scaled, then gaps are filled, then the padding is set. A gap is filled from earlier values only, so a
stream is filled exactly like the whole sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from resolvent.data.readers.tokeniser import Tokeniser
from resolvent.data.readers.values import tensor_of
from resolvent.models.settings import Settings
from resolvent.usage.numbers import is_number

Missing = Literal["refuse", "zero", "mean", "ffill", "flag"]
Scale = Literal["none", "standard", "minmax"]
Bounds = tuple[float, float]
LARGEST = torch.finfo(torch.float32).max  # largest model input


@dataclass(frozen=True)
class Layout(Settings):
    """The layout of a file, so that new files are read by the same names.

    label     the column of a table with the targets
    header    whether the first line of a table names its columns
    channels  names of the channels, if the file has them
    steps     names of the columns of a table with one row per sample
    group     the column of a table that says which samples belong together; not a model input
    id, time  the columns of a table that identify samples and steps, if named differently
    ignore    columns of a table that are ignored
    """

    label: str | None = None
    header: bool = True
    channels: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    group: str | None = None
    id: str | None = None
    time: str | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preprocess(Settings):
    """Either `inputs` (raw channels) or `vocabulary` (tokens) is set; `classes` None means regression.

    centre, width  each channel becomes (x - centre) / width
    missing        what a gap becomes: 0 after scaling ("zero"), the mean of the training part ("mean"), the last value
                   of the channel, or that mean before the first ("ffill"); "flag": the same, and one more channel for
                   each of `flagged`, 1 where the value was missing
    fill           the mean observed in training of each channel, scaled
    low, high      the observed range of each model input channel, scaled
    bounds         the valid range of all of them, kept by attacks; `inferred`: taken from the data
    length         number of steps of the training arrays; `padded`: some sequences were shorter
    """

    inputs: int | None = None
    vocabulary: int | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    layout: Layout = field(default_factory=Layout)
    missing: Missing = "refuse"
    flagged: tuple[int, ...] = ()
    scale: Scale = "none"
    centre: tuple[float, ...] = ()
    width: tuple[float, ...] = ()
    fill: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    bounds: Bounds | None = None
    inferred: bool = False
    length: int = 1
    padded: bool = False
    pair: bool = False
    tokeniser: Tokeniser | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the raw channels; numbers if the data had none."""
        return self.layout.channels or tuple(str(i) for i in range(self.inputs or 0))

    def by(self, missing: Missing | None) -> Preprocess:
        """The same with another rule for gaps; "flag" adds model channels, so it cannot be added or dropped."""
        if missing is None or missing == self.missing:
            return self
        if "flag" in (missing, self.missing):
            raise ValueError(
                f"data: the model was trained with missing={self.missing!r}, which fixes its channels; got {missing!r}."
            )
        return replace(self, missing=missing)

    def __call__(self, x: Any, lengths: Any = None) -> Tensor:
        """x (n, l, c) real, NaN where missing, in the form a model reads; tokens unchanged. Padding is arbitrary.

        Tensors, arrays or nested lists. Lists of sequences of several lengths: `Predictor.read`.
        """
        x = x if isinstance(x, Tensor) else tensor_of("x", x, "data", gaps=True)
        if self.inputs is None or not x.is_floating_point():
            return self._tokens(x)
        x = x[..., None] if x.dim() == 2 and self.inputs == 1 else x
        if x.dim() != 3 or x.shape[2] != self.inputs:
            raise ValueError(f"data: expected x of shape (n, l, {self.inputs}){self._named()}, got {tuple(x.shape)}.")
        inside = steps_inside(x, None if lengths is None else check_lengths(lengths, x))
        self._refuse_wrong(x, inside)
        gap = x.isnan() & inside
        ready = self._fill(self.scaled(x), gap, None)
        ready = torch.where(inside, ready, self._padding(ready))
        return torch.cat([ready, gap[..., list(self.flagged)].float()], -1) if self.flagged else ready

    def step(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step x (b, c) of a stream, and the last values seen, to pass to the next step."""
        if x.dim() != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"data: expected a step of shape (b, {self.inputs}){self._named()}, got {tuple(x.shape)}.")
        self._refuse_wrong(x[:, None], torch.ones(1, 1, 1, dtype=torch.bool))
        gap = x.isnan()
        ready = self._fill(self.scaled(x)[:, None], gap[:, None], last)[:, 0]
        flags = gap[:, list(self.flagged)].float()
        return torch.cat([ready, flags], -1), ready

    # -- parts - ----------------------------------------------------------------------------------------------------

    def _named(self) -> str:
        return f" (channels {', '.join(self.layout.channels)})" if self.layout.channels else ""

    def scaled(self, x: Tensor) -> Tensor:
        """Raw values (.., c) in the model's units, float32; gaps stay NaN."""
        if self.scale == "none":
            return x.float()
        centre, width = (torch.tensor(v, dtype=torch.float64) for v in (self.centre, self.width))
        return ((x.double() - centre) / width).float()

    def _fill(self, x: Tensor, gap: Tensor, last: Tensor | None) -> Tensor:
        """x (n, l, c) scaled; `last` (n, c) are the values before the first step."""
        if not bool(gap.any()):
            return x
        first = self._first(x) if last is None else last
        if self.missing in ("zero", "mean"):
            return torch.where(gap, self._first(x)[:, None], x)
        steps = torch.arange(x.shape[1])[None, :, None].expand_as(x)
        seen = torch.where(gap, -1, steps).cummax(1).values  # the latest step with a value; -1: none yet
        return torch.where(seen >= 0, x.gather(1, seen.clamp(min=0)), first[:, None])

    def _first(self, x: Tensor) -> Tensor:
        """The fill value before the first observed value: (1, c)."""
        values = (0.0,) * len(self.fill) if self.missing == "zero" else self.fill
        return torch.tensor(values, dtype=x.dtype)[None]

    def _padding(self, x: Tensor) -> Tensor:
        """0, or the nearest value in the channel's range: no model reads it, and attacks accept it as valid."""
        low, high = (torch.tensor(v[: self.inputs], dtype=x.dtype) for v in (self.low, self.high))
        return torch.zeros(self.inputs or 0, dtype=x.dtype).clamp(low, high)

    def _refuse_wrong(self, x: Tensor, inside: Tensor) -> None:
        infinite = (x.abs() > LARGEST) & inside
        if bool(infinite.any()):
            raise ValueError(f"data: x holds {int(infinite.sum())} infinite values; clip or drop them first.")
        gap = x.isnan() & inside
        if self.missing == "refuse" and bool(gap.any()):
            sample, step, channel = gap.nonzero()[0].tolist()
            place = f", the first in sample {sample}, step {step}, channel {self.channels[channel]}"
            refuse_gaps(int(gap.sum()), int(inside.expand_as(x).sum()), place)

    def _tokens(self, x: Tensor) -> Tensor:
        if self.vocabulary is None:
            return self(x.double())  # integers given to a model with real inputs
        if x.is_floating_point():
            raise TypeError(f"data: expected whole-number tokens below {self.vocabulary}, got {x.dtype}.")
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < self.vocabulary:
            got = f"{int(x.min())} to {int(x.max())}"
            raise ValueError(f"data: expected tokens from 0 to {self.vocabulary - 1}, got {got}.")
        return x.long()


def check_lengths(lengths: Any, x: Any, where: str = "data") -> Tensor:
    """How many steps of each sequence of x (n, l, ..) count: (n,) int64."""
    steps, (n, l) = tensor_of("lengths", lengths, where), x.shape[:2]
    if steps.is_floating_point():
        raise TypeError(f"{where}: expected whole numbers as lengths, got {steps.dtype}.")
    if steps.shape != (n,) or (n and not 1 <= int(steps.min()) <= int(steps.max()) <= l):
        raise ValueError(f"{where}: expected {n} lengths from 1 to {l}, got {steps.reshape(-1).tolist()[:8]}.")
    return steps.long()


def steps_inside(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(n or 1, l, 1): which steps of x (n, l, c) are valid."""
    if lengths is None:
        return torch.ones(1, x.shape[1], 1, dtype=torch.bool)
    return (torch.arange(x.shape[1]) < lengths[:, None])[..., None]


def refuse_gaps(count: int, of: int, place: str = "") -> NoReturn:
    raise ValueError(
        f"data: x holds {count} missing or infinite values ({count / max(1, of):.1%}){place}; fill or drop them first, "
        "or say how with missing='zero', 'mean', 'ffill' or 'flag' (--missing on the command line)."
    )


def _check(made: Preprocess) -> None:
    """Validate values that a hand-edited file could contain."""
    if made.inputs is not None and (not isinstance(made.inputs, int) or made.inputs < 1):
        raise ValueError(f"Preprocess: inputs must be a whole number from 1 on, got {made.inputs!r}.")
    if (made.inputs is None) == (made.vocabulary is None):
        raise ValueError("Preprocess: expected either inputs (real) or vocabulary (tokens).")
    if made.inputs is None:
        return
    wanted = {"centre": made.inputs, "width": made.inputs, "fill": made.inputs}
    wanted |= dict.fromkeys(("low", "high"), made.inputs + len(made.flagged))
    for name, count in wanted.items():
        values = getattr(made, name)
        if len(values) != count or not all(is_number(value) and math.isfinite(value) for value in values):
            raise ValueError(f"Preprocess: {name} must hold {count} finite numbers, got {str(values)[:60]}.")
    if min(made.width) <= 0 or any(a > b for a, b in zip(made.low, made.high, strict=True)):
        raise ValueError("Preprocess: expected widths above 0 and low <= high in every channel.")
    if not all(isinstance(i, int) and 0 <= i < made.inputs for i in made.flagged):
        raise ValueError(f"Preprocess: flagged must hold channels from 0 to {made.inputs - 1}, got {made.flagged}.")
    if len(made.layout.channels) not in (0, made.inputs):
        raise ValueError(f"Preprocess: expected {made.inputs} channel names, got {len(made.layout.channels)}.")
