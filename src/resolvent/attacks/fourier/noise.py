"""Noise on one Fourier mode or on a band of them.

    one mode     a u cos(w t)                                    u uniform in [0, 1) for each sample and channel
    a band       a m^(-1/2) sum_j u_j cos(w_j t + phi_j)         m modes spread over the band, with random phases

The first is the noise of the study of perturb-then-diagonalise models (Yu et al. 2024), which has no phase. Shape
letters: b samples, l steps, d channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.usage.numbers import check_count, check_not_negative

Frequency = float | tuple[float, float]
_SIZE, _PHASE = 0, 1  # streams of random numbers


@dataclass(frozen=True)
class FourierNoise:
    """The amplitude and frequency of the noise.

    amplitude   the maximum of one mode
    frequency   radians per unit of time; a pair (low, high) is a band
    modes       number of cosines in a band; 1 for a single frequency

    Examples:
        >>> rv.attacks.FourierNoise(0.1, 3.0).frequency
        3.0
    """

    amplitude: float
    frequency: Frequency
    modes: int = 16

    def __post_init__(self) -> None:
        _check("amplitude", self.amplitude)
        check_count("FourierNoise", 1, modes=self.modes)
        if not isinstance(self.frequency, tuple | list):
            _check("frequency", self.frequency)
            return
        if len(self.frequency) != 2:
            raise ValueError(f"FourierNoise: a band is (low, high), got {self.frequency!r}.")
        object.__setattr__(self, "frequency", tuple(self.frequency))
        low, high = (_check("frequency", value) for value in self.frequency)
        if low > high:
            raise ValueError(f"FourierNoise: a band is (low, high) with low <= high, got ({low:g}, {high:g}).")

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The frequencies of all modes: the centres of equal parts of the band."""
        if not isinstance(self.frequency, tuple):
            return (float(self.frequency),)
        low, high = self.frequency
        return tuple(low + (high - low) * (j + 0.5) / self.modes for j in range(self.modes))

    def wave(self, draws: Draws, times: Tensor, channels: int) -> Tensor:
        """(b, l, d) in float64: times (l,) for all channels or (l, d), one sample for each of the draws.

        Angles reach thousands of periods, beyond float32's resolution.
        """
        t = times.to(draws.index.device, torch.float64)
        t = (t[:, None] if t.dim() == 1 else t)[None]  # (1, l, 1) or (1, l, d)
        total = t.new_zeros(())
        for j, omega in enumerate(self.frequencies):
            size = draws.uniform(_SIZE, j, (1, channels), torch.float64)  # (b, 1, d)
            total = total + size * torch.cos(omega * t + self._phase(draws, j, channels))
        return self.amplitude / math.sqrt(len(self.frequencies)) * total

    def _phase(self, draws: Draws, j: int, channels: int) -> Tensor | float:
        if not isinstance(self.frequency, tuple):
            return 0.0
        return 2 * math.pi * draws.uniform(_PHASE, j, (1, channels), torch.float64)


def noises(amplitudes: Sequence[float], frequencies: Sequence[Frequency]) -> list[FourierNoise]:
    """Every amplitude at every frequency: the points of a sweep.

    Examples:
        >>> len(rv.attacks.noises([0.1, 0.3], [1.0, 2.0, 3.0]))
        6
    """
    return [FourierNoise(a, w) for w in frequencies for a in amplitudes]


def _check(name: str, value: Any) -> float:
    check_not_negative("FourierNoise", **{name: value})
    return float(value)
