"""Corruptions of sequences (b, l, c), each in five severities.

    noise      normal noise                              0.1 0.2 0.4 0.7 1.0     standard deviations of the channel
    drift      a straight line from 0 to either side     0.2 0.5 1.0 1.5 2.0     deviations at the end
    tone       a cosine of random frequency and phase  0.1 0.3 0.6 1.0 1.5     deviations
    clipping   values clipped at quantiles                   0.02 0.05 0.1 0.2 0.3   share cut on either side
    channels   whole channels set to the mean                 0.1 0.2 0.3 0.5 0.7     share of channels, at least one
    spans      one stretch of time set to the mean             0.05 0.1 0.2 0.3 0.5    share of the steps
    jitter     each step is read a little early or late  0.3 0.6 1.0 2.0 4.0     deviation in steps
    rate       another sampling rate                     0.95 0.9 0.8 0.7 0.6    of the speed; the end repeats
    warping    time runs faster and slower in turn       0.02 0.05 0.1 0.2 0.3   largest shift, share of the length

Standard deviations are those of the data to be corrupted, per channel. Random numbers belong to the sample: neither
its batch nor other corruptions affect its result. Padding is not changed, and a corruption ends where the sample
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, eq=False)
class Scene:
    """Samples with the statistics that corruptions need."""

    x: Tensor  # (b, l, c)
    lengths: Tensor  # (b,)
    mean: Tensor  # (c,) of the data
    deviation: Tensor  # (c,)
    draws: Draws

    @property
    def times(self) -> Tensor:
        """0 .. l - 1: (1, l)."""
        return torch.arange(self.x.shape[1], device=self.x.device, dtype=self.x.dtype)[None]

    @property
    def share(self) -> Tensor:
        """Relative position of each step between the first and last of its sample: (b, l), above 1 in the padding."""
        return self.times / (self.lengths[:, None] - 1).clamp_min(1)

    def uniform(self, stream: int, *shape: int) -> Tensor:
        return self.draws.uniform(stream, 0, shape, self.x.dtype)


def noise(s: Scene, size: float) -> Tensor:
    return s.x + size * s.deviation * s.draws.normal(0, 0, s.x.shape[1:], s.x.dtype)


def drift(s: Scene, size: float) -> Tensor:
    side = s.draws.sign(0, 0, (1, s.x.shape[2]), s.x.dtype)  # (b, 1, c)
    return s.x + size * s.deviation * side * s.share[:, :, None]


def tone(s: Scene, size: float) -> Tensor:
    """Frequency between one period per sample and a quarter of the sampling rate."""
    lowest = 1 / s.lengths.to(s.x.dtype).clamp_min(4)
    frequency = lowest * (0.25 / lowest) ** s.uniform(0)  # (b,) cycles per step
    phase = s.uniform(1, 1, s.x.shape[2])
    wave = torch.cos(2 * math.pi * (frequency[:, None] * s.times)[:, :, None] + 2 * math.pi * phase)
    return s.x + size * s.deviation * wave


def clipping(s: Scene, size: float) -> Tensor:
    """Clip at quantiles of each sample and channel."""
    inside = (s.times < s.lengths[:, None])[:, :, None]
    held = torch.where(inside, s.x, torch.nan)
    low, high = (torch.nanquantile(held, q, dim=1, keepdim=True) for q in (size, 1 - size))
    return s.x.clamp(low, high)


def channels(s: Scene, size: float) -> Tensor:
    count = max(1, round(size * s.x.shape[2]))
    order = s.draws.permutation(s.x.shape[2], 0, 0)[:, :count]  # (b, count)
    silent = torch.zeros(s.x.shape[0], s.x.shape[2], dtype=torch.bool, device=s.x.device).scatter(1, order, True)
    return torch.where(silent[:, None], s.mean, s.x)


def spans(s: Scene, size: float) -> Tensor:
    width = (size * s.lengths).round().clamp_min(1)  # (b,)
    start = (s.uniform(0) * (s.lengths - width + 1)).floor()
    silent = (s.times >= start[:, None]) & (s.times < (start + width)[:, None])
    return torch.where(silent[:, :, None], s.mean, s.x)


def jitter(s: Scene, size: float) -> Tensor:
    return _read_at(s, s.times + size * s.draws.normal(0, 0, s.x.shape[1:2], s.x.dtype))


def rate(s: Scene, size: float) -> Tensor:
    """Resample faster (the end repeats), or slower by the same factor."""
    faster = s.uniform(0)[:, None] < 0.5
    return _read_at(s, s.times * torch.where(faster, 1 / size, size))


def warping(s: Scene, size: float) -> Tensor:
    """A smooth time shift of two random waves, zero at both ends."""
    a, b = (2 * s.uniform(i)[:, None] - 1 for i in (0, 1))
    at = s.share.clamp_max(1.0)
    shift = (a * torch.sin(math.pi * at) + b * torch.sin(2 * math.pi * at)) / 2
    return _read_at(s, s.times + size * s.lengths[:, None] * shift)


def _read_at(s: Scene, times: Tensor) -> Tensor:
    """x interpolated at other times (b, l), constant beyond both ends."""
    last = (s.lengths - 1)[:, None].to(s.x.dtype)
    at = torch.minimum(times.clamp_min(0.0), last)
    before = at.floor().long()
    after = torch.minimum(before + 1, last.long())
    part = (at - before).unsqueeze(-1)

    def pick(i: Tensor) -> Tensor:
        return s.x.gather(1, i[:, :, None].expand(-1, -1, s.x.shape[2]))

    return torch.lerp(pick(before), pick(after), part)


@dataclass(frozen=True)
class Corruption:
    name: str
    run: Callable[[Scene, float], Tensor]
    sizes: tuple[float, ...]  # one for each severity


CORRUPTIONS: tuple[Corruption, ...] = (
    Corruption("noise", noise, (0.1, 0.2, 0.4, 0.7, 1.0)),
    Corruption("drift", drift, (0.2, 0.5, 1.0, 1.5, 2.0)),
    Corruption("tone", tone, (0.1, 0.3, 0.6, 1.0, 1.5)),
    Corruption("clipping", clipping, (0.02, 0.05, 0.1, 0.2, 0.3)),
    Corruption("channels", channels, (0.1, 0.2, 0.3, 0.5, 0.7)),
    Corruption("spans", spans, (0.05, 0.1, 0.2, 0.3, 0.5)),
    Corruption("jitter", jitter, (0.3, 0.6, 1.0, 2.0, 4.0)),
    Corruption("rate", rate, (0.95, 0.9, 0.8, 0.7, 0.6)),
    Corruption("warping", warping, (0.02, 0.05, 0.1, 0.2, 0.3)),
)
