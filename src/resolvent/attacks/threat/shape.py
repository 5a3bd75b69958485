"""Shapes of a perturbation over time, beyond its size: a budget of time steps, or a band of frequencies.

Both refer to axis 1 of x (b, l, ...). A frequency is in cycles per step, so that 0.5 is Nyquist's. A padded sample of n
steps has the frequencies k / n of its own steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.threat.region import rows_of
from resolvent.usage.numbers import check_count

NYQUIST = 0.5
_SNAP = 1e-9  # tolerance for a frequency rounded outside the band

Band = tuple[float, float] | Tensor


def check_steps(steps: Any) -> None:
    if steps is not None:
        check_count("Threat", 1, steps=steps)


def parse_band(band: Any) -> Band | None:
    """(low, high) in cycles per step, or a bool tensor with an entry for each frequency of `torch.fft.rfft`."""
    if band is None or (isinstance(band, Tensor) and band.dtype == torch.bool and band.dim() == 1):
        if band is not None and not bool(band.any()):
            raise ValueError("Threat: the frequency mask is False throughout: no perturbation is left.")
        return band
    pair = isinstance(band, tuple | list) and len(band) == 2
    if not pair or any(isinstance(v, bool) or not isinstance(v, int | float) for v in band):
        raise TypeError(
            f"Threat: band must be (low, high) in cycles a step, or a bool tensor (l // 2 + 1,) of frequencies; got "
            f"{band!r}."
        )
    low, high = float(band[0]), float(band[1])
    if not 0 <= low <= high <= NYQUIST:
        raise ValueError(
            f"Threat: a band lies between 0 and {NYQUIST} cycles a step, Nyquist's frequency, with low <= high; got "
            f"({low:g}, {high:g}). Frequencies in hertz are divided by the sampling rate."
        )
    return low, high


def check_shape(x: Tensor, steps: int | None, band: Band | None) -> None:
    """Require that x has enough time steps, and a frequency in the band."""
    if steps is None and band is None:
        return
    if x.dim() not in (2, 3):
        raise ValueError(f"Threat: steps and band need sequences x (b, l) or (b, l, d), got {tuple(x.shape)}.")
    l = x.shape[1]
    if steps is not None and steps > l:
        raise ValueError(f"Threat: {steps} time steps may change, but x {tuple(x.shape)} has {l}; give at most {l}.")
    if isinstance(band, Tensor) and band.shape[0] != l // 2 + 1:
        raise ValueError(
            f"Threat: the frequency mask must have {l // 2 + 1} entries for sequences of {l} steps, got "
            f"{band.shape[0]}."
        )
    if isinstance(band, tuple) and not bool(bins(band, l).any()):
        raise ValueError(
            f"Threat: no frequency of {l} steps lies in the band ({band[0]:g}, {band[1]:g}): they are the multiples of "
            f"1/{l} = {1 / l:.4g} cycles a step; widen it."
        )


def bins(band: Band, n: int) -> Tensor:
    """Which of the frequencies 0, 1/n, 2/n, ... are in the band: bool (n // 2 + 1,)."""
    if isinstance(band, Tensor):
        return band
    at = torch.arange(n // 2 + 1, dtype=torch.float64) / n
    return (at >= band[0] - _SNAP) & (at <= band[1] + _SNAP)


def find_spans(free: Tensor | None, x: Tensor) -> Tensor | None:
    """The number of leading steps of each sample that the mask leaves free: (b,); None without a mask over time.

    A band applies to whole signals: a mask may only shorten them and exclude channels.
    """
    if free is None or free.shape[1] == 1:
        return None
    full = free.expand(x.shape) if x.dim() == 3 else free.expand(x.shape)[:, :, None]
    in_time, in_channel = full.any(2), full.any(1)  # (b, l), (b, d)
    lengths = in_time.sum(1)
    prefix = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    if not bool((full == (prefix[:, :, None] & in_channel[:, None])).all()):
        raise ValueError(
            "Threat: with a band, a mask may only end a sequence or leave out whole channels; perturbations with gaps "
            "in them are not band-limited."
        )
    return lengths


def keep_band(delta: Tensor, band: Band, spans: Tensor | None) -> Tensor:
    """The nearest signals in the band: the orthogonal projection of delta (b, l, ...) along time."""
    if spans is None:
        return _filter(delta, band)
    found = torch.zeros_like(delta)
    for n in spans.unique().tolist():
        if n:
            rows = spans == n
            found[rows, :n] = _filter(delta[rows, :n], band)
    return found


def _filter(delta: Tensor, band: Band) -> Tensor:
    n = delta.shape[1]
    inside = bins(band, n)
    if inside.shape[0] != n // 2 + 1:
        raise ValueError(f"Threat: a frequency mask does not fit a padded sample of {n} steps; give a band.")
    kept = inside.to(delta.device).view(1, -1, *[1] * (delta.dim() - 2))
    return torch.fft.irfft(torch.fft.rfft(delta, dim=1) * kept, n=n, dim=1)


def find_heaviest(weight: Tensor, steps: int) -> Tensor:
    """The `steps` largest of weight (b, l), earlier ones first where they are equal: bool (b, l)."""
    order = weight.argsort(dim=1, descending=True, stable=True)[:, :steps]
    return torch.zeros_like(weight, dtype=torch.bool).scatter(1, order, True)


def align_time(kept: Tensor, rank: int) -> Tensor:
    """(b, l) shaped to multiply x."""
    return kept.view(*kept.shape, *[1] * (rank - 2))


@dataclass(frozen=True)
class Shape:
    """The constraints of a fitted threat on a perturbation besides its size, and the values that limit it."""

    steps: int | None
    band: Band | None
    spans: Tensor | None  # (b,) of padded samples
    low: Tensor | None  # (1 or b, ...) of x's rank, as the rest
    high: Tensor | None
    scale: Tensor | None  # each channel's share of the largest eps

    def select(self, index: Tensor) -> Shape:
        spans = None if self.spans is None else self.spans[index]
        limits = (rows_of(v, index) for v in (self.low, self.high, self.scale))
        return Shape(self.steps, self.band, spans, *limits)

    def holds(self, delta: Tensor, slack: Tensor) -> Tensor:
        """Whether few enough steps are touched, and nothing above `slack` (b,) is outside of the band: (b,)."""
        good = torch.ones(len(delta), dtype=torch.bool, device=delta.device)
        if self.steps is not None:
            touched = delta != 0
            good &= (touched.any(2) if delta.dim() > 2 else touched).sum(1) <= self.steps
        if self.band is not None:
            outside = delta.double() - keep_band(delta.double(), self.band, self.spans)
            good &= outside.flatten(1).abs().amax(1) <= slack
        return good
