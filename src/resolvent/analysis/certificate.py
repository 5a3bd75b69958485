"""Certified radii from a Lipschitz constant: within them no perturbation changes the prediction.

With ||f(x) - f(x')||_2 <= L ||x - x'||_2 for the logits f, a difference of two of them moves by at most
sqrt(2) L ||x - x'||_2 (Tsuzuku, Sato & Sugiyama 2018), so a margin z_y - max_j z_j certifies

    l2     radius = margin / (sqrt(2) L)
    l1     the same radius, since ||d||_2 <= ||d||_1
    linf   radius / sqrt(n), since ||d||_2 <= sqrt(n) ||d||_inf for n entries that may change

Where the last map is linear with rows w (`certified_gain(parts, head=w)`), ||w_y - w_j|| times the constant of what
comes before it takes the place of sqrt(2) L, pair by pair. Twice the rounding error of a logit is taken off the margin,
because f is run in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.analysis.gain import BrokenClaim, Gain
from resolvent.attacks.border import check_data, check_logits
from resolvent.attacks.model import Victim

Norm = Literal["l2", "linf", "l1"]
NORMS = ("l2", "linf", "l1")
ULPS = 64  # rounding error of a logit, in units of the last place of the largest one, unless told


@dataclass(frozen=True, eq=False)
class Certificate:
    """Per sample. `radius` is in `norm`, and 0 where the prediction is wrong or tied."""

    radius: Tensor  # (b,) float64
    margin: Tensor  # (b,) float64: z_y - max_j z_j, rounding taken off
    correct: Tensor  # (b,) bool
    norm: Norm
    lipschitz: float
    pairwise: bool = False  # whether the last linear map was taken pair by pair

    def certified(self, eps: float) -> Tensor:
        """Whether each prediction is right and stays so within eps: (b,) bool."""
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
        """What `as_dict` wrote; `verify` it before it is trusted."""
        radius, margin = (torch.tensor(held[k], dtype=torch.float64) for k in ("radius", "margin"))
        correct = torch.tensor(held["correct"], dtype=torch.bool)
        return Certificate(radius, margin, correct, held["norm"], held["lipschitz"], held["pairwise"])


def certify(
    f: Callable[[Tensor], Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    gain: Gain | float,
    *,
    norm: Norm = "l2",
    lengths: Tensor | None = None,
) -> Certificate:
    """Run f on x (b, ...) and certify its predictions; `gain` is that of f from x to the logits.

    f         a module runs in evaluation mode; Victim(f, batch_size) bounds how many samples pass at once
    lengths   (b,) steps that may change, for padded x (b, l, ...): fewer entries give a larger linf radius
    """
    check_data("certify", x, y)
    victim = Victim.of(f)
    with victim.attacked():
        logits = victim.forward(x)
    entries = math.prod(x.shape[1:])
    free = entries if lengths is None else lengths * (entries // x.shape[1])
    return certify_logits(logits, y, gain, norm=norm, entries=free)


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

    entries    how many input entries may change, for linf: a number or one for each sample
    rounding   absolute error of a logit; None: 64 units in the last place of the largest logit of the sample
    """
    L = _positive(gain)
    if norm not in NORMS:
        raise ValueError(f"certify: norm must be one of {', '.join(map(repr, NORMS))}; got {norm!r}.")
    check_logits("certify", logits, y)
    z, own = logits.detach().double(), y.long()[:, None]
    error = ULPS * torch.finfo(logits.dtype).eps * z.abs().amax(1) if rounding is None else rounding
    error = torch.as_tensor(error, dtype=z.dtype, device=z.device).reshape(-1, 1)
    others = torch.ones_like(z, dtype=torch.bool).scatter(1, own, False)
    gaps = torch.where(others, z.gather(1, own) - z - 2 * error, math.inf)  # (b, k)
    radius = torch.where(gaps.amin(1) > 0, (gaps / _slopes(gain, own[:, 0], z.shape[1])).amin(1), 0.0)
    if norm == "linf":
        radius = radius / torch.as_tensor(entries, dtype=z.dtype, device=z.device).sqrt()
    correct = (torch.where(others, z, -math.inf) < z.gather(1, own)).all(1)
    return Certificate(radius, gaps.amin(1), correct, norm, L, isinstance(gain, Gain) and gain.head is not None)


def verify(
    certificate: Certificate,
    f: Callable[[Tensor], Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    gain: Gain,
    *,
    lengths: Tensor | None = None,
) -> Certificate:
    """Compute a stored certificate again, with a gain that was computed again, and refuse one that claims more.

    Returns the new certificate.
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


def _positive(gain: Gain | float) -> float:
    value = gain.require() if isinstance(gain, Gain) else gain
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"certify: the Lipschitz constant must be positive and finite, got {value!r}.")
    return float(value)


def _slopes(gain: Gain | float, y: Tensor, classes: int) -> Tensor:
    """How fast each difference z_y - z_j can move: sqrt(2) L, or ||w_y - w_j|| times the features' L. (b, k) or ()."""
    if not isinstance(gain, Gain) or gain.head is None or gain.features is None:
        return torch.tensor(math.sqrt(2) * _positive(gain), dtype=torch.float64, device=y.device)
    W = gain.head.to(y.device)
    if W.dim() != 2 or W.shape[0] != classes:
        raise ValueError(f"certify: head must hold one row for each of {classes} classes, got {tuple(W.shape)}.")
    apart = torch.cdist(W, W, compute_mode="donot_use_mm_for_euclid_dist")[y]  # (b, k)
    return (apart * gain.features).clamp_min(torch.finfo(torch.float64).tiny)
