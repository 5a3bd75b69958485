"""Randomised smoothing (Cohen, Rosenfeld & Kolter 2019): an L2 certificate for any classifier, with its probability.

The smoothed classifier predicts the class that f returns most often under noise N(0, sigma^2 I). From `n0` noisy
copies the winner is guessed; among `n` others it is counted, and with probability 1 - alpha for each sample

    p_A = ClopperPearson(count, n; 1 - alpha)  is below the winner's true probability, so that
    radius = sigma Phi^-1(p_A)                 is certified (Theorem 1 with p_B = 1 - p_A), if p_A > 1/2; else abstain.

Noise is not clipped to the data's range: the theorem is for the whole space. A copy's noise depends on (seed, sample,
copy) alone, so results do not depend on batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.analysis.certificates.padding import check_lengths, own_steps
from resolvent.attacks.checks import check_data
from resolvent.attacks.draws import Draws
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted, check_fraction, check_positive

ABSTAIN = -1


@dataclass(frozen=True)
class SmoothingSettings(Counted):
    """sigma is the noise's standard deviation in the units of x; `rows` noisy copies pass through f at once.

    Examples:
        >>> rv.analysis.SmoothingSettings(sigma=0.25).alpha
        0.001
    """

    least: ClassVar[dict[str, int]] = {"n0": 1, "n": 1, "rows": 1}
    sigma: float
    n0: int = 100
    n: int = 10_000
    alpha: float = 1e-3
    rows: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("SmoothingSettings", sigma=self.sigma)
        check_fraction("SmoothingSettings", alpha=self.alpha)

    @property
    def largest_radius(self) -> float:
        """The largest certifiable radius, if all n copies agree: sigma Phi^-1(alpha^(1/n))."""
        return radius_of(clopper_pearson(torch.tensor([self.n]), self.n, self.alpha), self.sigma).item()


@dataclass(frozen=True, eq=False)
class SmoothingResult:
    """Per sample; `certified(eps)` may be wrong with probability `alpha` per sample.

    Examples:
        >>> f = torch.nn.Linear(3, 2)
        >>> settings = rv.analysis.SmoothingSettings(sigma=0.25, n0=10, n=50)
        >>> rv.analysis.smooth(f, torch.randn(4, 3), torch.zeros(4, dtype=torch.long), settings).radius.shape
        torch.Size([4])
    """

    prediction: Tensor  # (b,) int64, -1 where the smoothed classifier abstains
    correct: Tensor  # (b,) bool
    radius: Tensor  # (b,) float64, 0 where it abstains
    counts: Tensor  # (b,) int64: number of n copies that agreed
    p_lower: Tensor  # (b,) float64
    settings: SmoothingSettings

    def certified(self, eps: float) -> Tensor:
        """Whether the prediction is correct and constant within eps in L2: (b,)."""
        return self.correct & (self.radius >= eps)

    @property
    def accuracy(self) -> float:
        """The accuracy of the smoothed classifier; an abstention counts as wrong."""
        return float(self.correct.double().mean())

    @property
    def abstained(self) -> int:
        return int((self.prediction == ABSTAIN).sum())

    def curve(self, grid: list[float]) -> list[float]:
        return [float(self.certified(eps).double().mean()) for eps in grid]

    def as_dict(self) -> dict[str, Any]:
        s = self.settings
        return {
            "norm": "l2", "method": "smoothing", "sigma": s.sigma, "n0": s.n0, "n": s.n, "alpha": s.alpha,
            "seed": s.seed, "confidence_of_each_sample": 1 - s.alpha, "accuracy": self.accuracy,
            "abstained": self.abstained, "prediction": self.prediction.tolist(), "radius": self.radius.tolist(),
            "correct": self.correct.tolist(), "largest_radius": s.largest_radius,
        }  # fmt: skip


def smooth(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    settings: SmoothingSettings,
    *,
    lengths: Tensor | None = None,
    draws: Draws | None = None,
) -> SmoothingResult:
    """Certify the smoothed f at each sample of x (b, ...): f maps to logits and runs in evaluation mode.

    lengths   (b,) of padded x (b, l, ...): f is called as f(x, lengths), and padding gets no noise
    draws     the samples' random numbers, if x is part of a larger set: Draws.of(x, seed, first)

    Examples:
        >>> f, settings = torch.nn.Linear(3, 2), rv.analysis.SmoothingSettings(sigma=0.25, n0=10, n=50)
        >>> 0 <= rv.analysis.smooth(f, torch.randn(4, 3), torch.zeros(4, dtype=torch.long), settings).accuracy <= 1
        True
    """
    check_data("smooth", x, y)
    lengths = check_lengths("smooth", lengths, x)
    victim = Victim.of(f)
    draws = Draws.of(x, settings.seed) if draws is None else draws
    if len(draws) != x.shape[0]:
        raise ValueError(f"smooth: draws must number {x.shape[0]} samples, got {len(draws)}; use Draws.of(x, seed).")
    with victim.attacked():
        guess = _votes(victim, (x, lengths), draws.fold("select"), settings.n0, settings).argmax(1)  # (b,)
        votes = _votes(victim, (x, lengths), draws.fold("estimate"), settings.n, settings)
    counts = votes.gather(1, guess[:, None])[:, 0]
    p_lower = clopper_pearson(counts, settings.n, settings.alpha)
    sure = p_lower > 0.5
    prediction = torch.where(sure, guess, ABSTAIN)
    radius = torch.where(sure, radius_of(p_lower, settings.sigma), 0.0)
    return SmoothingResult(prediction, prediction == y, radius, counts, p_lower, settings)


def clopper_pearson(counts: Tensor, n: int, alpha: float) -> Tensor:
    """The exact one-sided lower confidence bound of a proportion seen `counts` times in n: (b,) float64."""
    from scipy.stats import beta

    k = counts.detach().cpu().double()
    bound = torch.as_tensor(beta.ppf(alpha, k.numpy(), (n - k + 1).numpy()), dtype=torch.float64)
    return torch.where(k > 0, bound, 0.0).to(counts.device)  # without successes the bound is 0 and beta is undefined


def radius_of(p_lower: Tensor, sigma: float) -> Tensor:
    """sigma Phi^-1(p)."""
    return sigma * torch.special.ndtri(p_lower)


def _votes(
    victim: Victim, data: tuple[Tensor, Tensor | None], draws: Draws, copies: int, settings: SmoothingSettings
) -> Tensor:
    """How often each class wins among noisy copies of each sample: (b, classes)."""
    x, lengths = data
    b, votes = x.shape[0], None
    pairs = torch.arange(b * copies, device=x.device)  # copy k of sample i has index i copies + k
    for part in pairs.split(settings.rows):
        sample, copy = part // copies, part % copies
        noise = draws.select(sample).fold(copy).normal(0, 0, x.shape[1:], x.dtype)
        own = None if lengths is None else lengths[sample]
        noise = noise if own is None else noise * own_steps(noise, own)
        logits = victim.forward(x[sample] + settings.sigma * noise, own)
        if votes is None:
            votes = torch.zeros(b, logits.shape[1], dtype=torch.int64, device=x.device)
        sound = torch.isfinite(logits).all(1)  # a copy with NaN outputs does not vote
        chosen = (sample[sound], logits[sound].argmax(1))
        votes.index_put_(chosen, torch.ones_like(chosen[0]), accumulate=True)
    assert votes is not None
    return votes
