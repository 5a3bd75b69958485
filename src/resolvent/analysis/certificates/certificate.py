"""Certified radii from a Lipschitz constant: within them no perturbation changes the prediction.

With ||f(x) - f(x')||_2 <= L ||x - x'||_2 for the logits f, a difference of two of them moves by at most
sqrt(2) L ||x - x'||_2 (Tsuzuku, Sato & Sugiyama 2018), so a margin z_y - max_j z_j certifies

    l2     radius = margin / (sqrt(2) L)
    l1     the same radius, since ||d||_2 <= ||d||_1
    linf   radius / sqrt(n), since ||d||_2 <= sqrt(n) ||d||_inf for n entries that may change

If the last map is linear with rows w (`certified_gain(parts, head=w)`), ||w_y - w_j|| times the constant of everything
before it replaces sqrt(2) L, pair by pair.

f is run in floating point, whose error e(x) grows with |x| (`gain_rounding`): a large offset cancels, its rounding does
not. The computed margin may be off by 2 e(x), the one at x + d by 2 e(x + d) <= 2 e(x) + 2 e' |d|; both are
subtracted, so that the radius holds for the computed passes, in the dtype of x and f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.analysis.certificates.gain import BrokenClaim, Gain
from resolvent.analysis.certificates.gain_rounding import Line, logit_error
from resolvent.analysis.certificates.padding import check_lengths, own_entries, own_steps
from resolvent.analysis.certificates.precision import eps_of
from resolvent.attacks.checks import check_data, check_logits
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import check_choice, check_positive

Norm = Literal["l2", "linf", "l1"]
NORMS = ("l2", "linf", "l1")
DOWN = 1 - 1e-12  # radii are rounded down by far more than their float64 rounding error
ULPS = 64  # default rounding error of a logit, in units in the last place of the largest one


@dataclass(frozen=True, eq=False)
class Certificate:
    """Per sample. `radius` is in `norm`, and 0 where the prediction is wrong or tied.

    Examples:
        >>> logits, y = torch.tensor([[2.0, 0.0], [0.1, 0.0]]), torch.tensor([0, 0])
        >>> found = rv.analysis.certify_logits(logits, y, gain=1.0)
        >>> found.accuracy(0.5)
        0.5
    """

    radius: Tensor  # (b,) float64
    margin: Tensor  # (b,) float64: z_y - max_j z_j, minus rounding
    correct: Tensor  # (b,) bool
    norm: Norm
    lipschitz: float
    pairwise: bool = False  # whether the last linear map was bounded pair by pair

    def certified(self, eps: float) -> Tensor:
        """Whether each prediction is correct and constant within eps: (b,) bool."""
        if not 0 <= eps < math.inf:
            raise ValueError(f"Certificate: eps must be finite and not negative, got {eps}.")
        return self.correct & (self.radius > 0) & (self.radius >= eps)

    def accuracy(self, eps: float) -> float:
        return float(self.certified(eps).double().mean())

    def curve(self, grid: Sequence[float]) -> list[float]:
        """Certified accuracy at each eps."""
        return [self.accuracy(eps) for eps in grid]

    def as_dict(self) -> dict[str, Any]:
        return {
            "norm": self.norm, "lipschitz": self.lipschitz, "pairwise": self.pairwise, "radius": self.radius.tolist(),
            "margin": self.margin.tolist(), "correct": self.correct.tolist(),
        }  # fmt: skip

    @staticmethod
    def from_dict(held: dict[str, Any]) -> Certificate:
        """The inverse of `as_dict`; `verify` it before trusting it."""
        radius, margin = (torch.tensor(held[k], dtype=torch.float64) for k in ("radius", "margin"))
        correct = torch.tensor(held["correct"], dtype=torch.bool)
        return Certificate(radius, margin, correct, held["norm"], held["lipschitz"], held["pairwise"])


def certify(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    gain: Gain | float,
    *,
    norm: Norm = "l2",
    lengths: Tensor | None = None,
) -> Certificate:
    """Run f on x (b, ...) and certify its predictions; `gain` is that of f from x to the logits.

    f         a module runs in evaluation mode; Victim(f, batch_size) limits how many samples are passed at once
    lengths   (b,) of padded x (b, l, ...): f is called as f(x, lengths), and padding is not perturbed; fewer entries
              give a larger linf radius

    Examples:
        >>> f = torch.nn.Linear(3, 2)
        >>> lipschitz = float(torch.linalg.matrix_norm(f.weight.detach(), 2)) * 1.0001
        >>> found = rv.analysis.certify(f, torch.randn(4, 3), torch.zeros(4, dtype=torch.long), lipschitz)
        >>> found.radius.shape
        torch.Size([4])
    """
    check_data("certify", x, y)
    lengths = check_lengths("certify", lengths, x)
    victim = Victim.of(f)
    with victim.attacked():
        logits = victim.forward(x, lengths)
    allowance, growth = bound_errors(victim, x, logits, gain, lengths)
    return _certificate(logits, y, gain, norm, own_entries(x, lengths), 2 * allowance, growth)


def certify_logits(
    logits: Tensor,
    y: Tensor,
    gain: Gain | float,
    *,
    norm: Norm = "l2",
    entries: int | Tensor = 1,
    rounding: float | Tensor | None = None,
) -> Certificate:
    """Certified radii of given logits (b, k).

    entries    number of input entries that may change, for linf: a number or one per sample
    rounding   absolute error of a logit; None: 64 units in the last place of the sample's largest logit, which
               does not account for rounding before the logits (`certify` does)

    Examples:
        >>> found = rv.analysis.certify_logits(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gain=1.0)
        >>> round(float(found.radius), 3)
        1.414
    """
    check_logits("certify", logits, y)
    error = ULPS * torch.finfo(logits.dtype).eps * logits.detach().double().abs().amax(1)
    error = error if rounding is None else torch.as_tensor(rounding, dtype=torch.float64, device=logits.device)
    return _certificate(logits, y, gain, norm, entries, error, 0.0)


def _certificate(
    logits: Tensor, y: Tensor, gain: Gain | float, norm: Norm, entries: int | Tensor, error: Tensor, growth: float
) -> Certificate:
    """Subtracts twice `error` (b,) from each margin; differences of logits move by `growth` more per unit of |d|."""
    L = positive(gain)
    check_choice("certify", "norm", norm, NORMS)
    check_logits("certify", logits, y)
    z, own = logits.detach().double(), y.long()[:, None]
    others = torch.ones_like(z, dtype=torch.bool).scatter(1, own, False)
    gaps = torch.where(others, z.gather(1, own) - z - 2 * error.reshape(-1, 1), math.inf)  # (b, k)
    slopes = _slopes(gain, own[:, 0], z.shape[1]) + growth
    radius = torch.where(gaps.amin(1) > 0, (gaps / slopes).amin(1) * DOWN, 0.0)
    if norm == "linf":
        radius = radius / torch.as_tensor(entries, dtype=z.dtype, device=z.device).sqrt()
    correct = (torch.where(others, z, -math.inf) < z.gather(1, own)).all(1)
    return Certificate(radius, gaps.amin(1), correct, norm, L, isinstance(gain, Gain) and gain.head is not None)


def bound_errors(
    victim: Victim, x: Tensor, logits: Tensor, gain: Gain | float, lengths: Tensor | None
) -> tuple[Tensor, float]:
    """The error of the logits at x (b,), and the additional error of a difference of two per unit of |d|."""
    eps = max(eps_of(x, victim.module), torch.finfo(logits.dtype).eps)
    own = x.detach().double() if lengths is None else x.detach().double() * own_steps(x, lengths)
    norm = own.flatten(1).norm(dim=1)
    shortest = x.shape[1] if lengths is None else int(lengths.min())
    if isinstance(gain, Gain) and shortest < gain.least:
        raise ValueError(
            f"certify: this gain is of sequences of at least {gain.least} steps, and one of x has {shortest}; compose "
            f"it again from model.gain_parts({shortest})."
        )
    if isinstance(gain, Gain) and gain.chain:
        line = logit_error(gain, x.shape[1], eps, torch.finfo(x.dtype).tiny)
    else:
        line = Line(0.0, ULPS * eps * positive(gain))
    largest = logits.detach().double().abs().amax(1)
    error = line.const + line.slope * norm + ULPS * eps * largest
    return torch.where(error / eps < torch.finfo(x.dtype).max, error, math.inf), 2 * line.slope


def verify(
    certificate: Certificate,
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    gain: Gain,
    *,
    lengths: Tensor | None = None,
) -> Certificate:
    """Recompute a stored certificate with a recomputed gain, and refuse one that claims more.

    Returns the new certificate.

    Examples:
        >>> model = rv.build_model(rv.models.presets.l2ru_classifier(gain=3.0, hidden=8)).eval()
        >>> x, y = torch.rand(4, 64, 1), torch.zeros(4, dtype=torch.long)
        >>> gain = rv.analysis.certified_gain(model.gain_parts(64))
        >>> stored = rv.analysis.certify(model, x, y, gain)
        >>> torch.equal(rv.analysis.verify(stored, model, x, y, gain).radius, stored.radius)
        True
    """
    again = certify(f, x, y, gain, norm=certificate.norm, lengths=lengths)
    if again.radius.shape != certificate.radius.shape:
        raise ValueError(
            f"verify: the certificate is of {len(certificate.radius)} samples, x and y have {len(again.radius)}."
        )
    claimed = torch.where(certificate.correct, certificate.radius, 0.0).to(again.radius.device)
    held = torch.where(again.correct, again.radius, 0.0)
    worse = ~(claimed <= held * (1 + 1e-6))
    if bool(worse.any()):
        i = int(worse.nonzero()[0])
        raise BrokenClaim(
            f"verify: the certificate does not hold: {int(worse.sum())} samples claim more than the model gives, first "
            f"sample {i} with radius {float(claimed[i]):.6g} where {float(held[i]):.6g} holds (Lipschitz constant "
            f"{certificate.lipschitz:.6g} stored, {again.lipschitz:.6g} now)."
        )
    return again


def positive(gain: Gain | float) -> float:
    value = gain.require() if isinstance(gain, Gain) else gain
    check_positive("certify", **{"the Lipschitz constant": value})
    return float(value)


def _slopes(gain: Gain | float, y: Tensor, classes: int) -> Tensor:
    """Lipschitz constants of all z_y - z_j: sqrt(2) L, or ||w_y - w_j|| times the features' L: (b, k) or ()."""
    if not isinstance(gain, Gain) or gain.head is None or gain.features is None:
        return torch.tensor(math.sqrt(2) * positive(gain), dtype=torch.float64, device=y.device)
    W = gain.head.to(y.device)
    if W.dim() != 2 or W.shape[0] != classes:
        raise ValueError(f"certify: head must hold one row for each of {classes} classes, got {tuple(W.shape)}.")
    apart = torch.cdist(W, W, compute_mode="donot_use_mm_for_euclid_dist")[y]  # (b, k)
    return (apart * gain.features).clamp_min(torch.finfo(torch.float64).tiny)
