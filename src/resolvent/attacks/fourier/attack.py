"""Fourier-mode noise: a model's accuracy under a tone, over amplitudes and frequencies.

Without sites the noise is added to the input, where step k is at time k. Random numbers belong to a sample, so a result
does not depend on the batch size, and every point of a sweep uses the same ones. The frequency at which a model's own
layers amplify most comes from `analysis.worst_frequency`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.checks import gather
from resolvent.attacks.draws import Draws
from resolvent.attacks.fourier.noise import FourierNoise, Frequency
from resolvent.attacks.fourier.site import Site, disturbed
from resolvent.attacks.objective.objective import squared_deviation
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted

Bounds = tuple[float, float]


@dataclass(frozen=True)
class FourierSettings(Counted):
    """the seed and a sample's index determine its noise; noise at the input is clipped to `bounds`, if any.

    Examples:
        >>> rv.attacks.FourierSettings(seed=1).seed
        1
    """

    least: ClassVar[dict[str, int]] = {"batch_size": 1, "seed": 0}
    seed: int = 0
    batch_size: int = 256
    bounds: Bounds | None = None


@dataclass(frozen=True)
class FourierPoint:
    """The mean score under one noise: accuracy, or for real targets minus the squared error.

    Examples:
        >>> rv.attacks.FourierPoint(0.1, 3.0, score=0.9).score
        0.9
    """

    amplitude: float
    frequency: Frequency
    score: float

    def as_dict(self) -> dict[str, Any]:
        band = list(self.frequency) if isinstance(self.frequency, tuple) else self.frequency
        return {"amplitude": self.amplitude, "frequency": band, "score": self.score}


@dataclass(frozen=True)
class FourierSweep:
    """`clean` is the score without noise; `regression` whether scores are minus squared errors.

    Examples:
        >>> f, x, y = torch.nn.Flatten(), torch.rand(4, 3, 1), torch.tensor([0, 1, 0, 1])
        >>> found = rv.attacks.fourier_sweep(f, (x, y), rv.attacks.noises([0.1], [1.0]))
        >>> found.samples, len(found.points)
        (4, 1)
    """

    clean: float
    points: tuple[FourierPoint, ...]
    samples: int
    regression: bool

    @property
    def worst(self) -> FourierPoint:
        return min(self.points, key=lambda point: point.score)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        points = [point.as_dict() for point in self.points]
        return {"clean": self.clean, "points": points, "samples": self.samples, "regression": self.regression}

    def __str__(self) -> str:
        lines = [f"{self.samples} samples, without noise {_format_score(self.clean, self.regression)}"]
        for p in self.points:
            band = f"{p.frequency[0]:g} to {p.frequency[1]:g}" if isinstance(p.frequency, tuple) else f"{p.frequency:g}"
            lines.append(f"frequency {band}, amplitude {p.amplitude:g}: {_format_score(p.score, self.regression)}")
        return "\n".join(lines)


def fourier_sweep(
    f: Callable[..., Tensor],
    data: Any,
    points: Sequence[FourierNoise],
    sites: Sequence[Site] = (),
    settings: FourierSettings | None = None,
) -> FourierSweep:
    """The score of f on data (x, y) or (x, y, lengths), or a loader of such, clean and under each noise.

    f is called in evaluation mode; `sites` are modules inside it, by default its input x (n, l, d).

    Examples:
        >>> f, data = torch.nn.Flatten(), (torch.rand(4, 3, 1), torch.tensor([0, 1, 0, 1]))
        >>> rv.attacks.fourier_sweep(f, data, rv.attacks.noises([0.1, 0.3], [1.0])).samples
        4
    """
    how = settings or FourierSettings()
    x, y, lengths = _check_data(data, points, bool(sites))
    victim = Victim(f)
    with victim.attacked():
        clean = _score(victim, (x, y, lengths), None, sites, how)
        found = [FourierPoint(p.amplitude, p.frequency, _score(victim, (x, y, lengths), p, sites, how)) for p in points]
    return FourierSweep(clean, tuple(found), len(x), y.is_floating_point())


def _score(
    victim: Victim,
    data: tuple[Tensor, Tensor, Tensor | None],
    noise: FourierNoise | None,
    sites: Sequence[Site],
    how: FourierSettings,
) -> float:
    """The mean over all samples, batch by batch."""
    x, y, lengths = data
    total = 0.0
    for rows in torch.arange(len(x), device=x.device).split(how.batch_size):
        own = None if lengths is None else lengths[rows]
        draws, given = Draws(how.seed, rows).fold("fourier"), x[rows]
        if noise is not None and not sites:
            given = with_noise(given, noise, draws, how.bounds)
        with disturbed(sites, noise, draws) if noise is not None and sites else nullcontext():
            output = victim.forward(given, own)
        total += float(_scores(output, y[rows]).double().sum())
    return total / len(x)


def with_noise(x: Tensor, noise: FourierNoise, draws: Draws, bounds: Bounds | None = None) -> Tensor:
    """x (b, l, d) with the noise on every step k at time k, clipped to the bounds."""
    wave = noise.wave(draws, torch.arange(x.shape[1], device=x.device), x.shape[2]).to(x.dtype)
    return x + wave if bounds is None else (x + wave).clamp(*bounds)


def _scores(output: Tensor, y: Tensor) -> Tensor:
    """Per sample: 1 or 0 for a class, minus the squared error for real targets."""
    if y.is_floating_point():
        return -squared_deviation(output, y.view_as(output))
    return (output.argmax(-1) == y).double()


def _check_data(data: Any, points: Sequence[FourierNoise], inside: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    x, y, lengths = gather("fourier_sweep", data, None)
    if len(x) != len(y) or not len(x):
        raise ValueError("fourier_sweep: x and y must be tensors with as many samples, at least one.")
    if not inside and (x.dim() != 3 or not x.is_floating_point()):
        raise ValueError(
            f"fourier_sweep: noise at the input needs real x (n, l, d), got {x.dtype} {tuple(x.shape)}; "
            "hand over sites to put it inside a model of tokens."
        )
    if not points:
        raise ValueError("fourier_sweep: there is no noise to try; make some with noises(amplitudes, frequencies).")
    return x, y, lengths


def _format_score(score: float, regression: bool) -> str:
    return f"squared error {0.0 - score:.4g}" if regression else f"{score:.1%}"
