"""Certified bounds on the change of real outputs, from a Lipschitz constant.

With ||f(x) - f(x')||_2 <= L ||x - x'||_2 over all of m outputs, the root mean square error moves by at most

    l2, l1   L eps / sqrt(m)
    linf     L eps sqrt(n) / sqrt(m), for n entries that may change

plus the floating-point error on both sides (certificate.py). So clean error + deviation bounds the error of every point
within eps, and (tolerance - clean error) / slope is a radius within which no error exceeds the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.certificates.certificate import DOWN, NORMS, Norm, bound_errors, positive
from resolvent.analysis.certificates.gain import Gain
from resolvent.analysis.certificates.padding import check_lengths, own_entries
from resolvent.attacks.regression.objective import check_targets, root_mean_square
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import check_choice


@dataclass(frozen=True, eq=False)
class Deviation:
    """Per sample, all (b,) float64: the error at x, its growth per unit of eps, and the effect of rounding.

    Examples:
        >>> f = torch.nn.Linear(3, 1)
        >>> gain = float(f.weight.detach().norm())
        >>> found = rv.analysis.certify_deviation(f, torch.randn(4, 3), torch.zeros(4, 1), gain)
        >>> bool((found.error(0.1) >= found.clean).all())
        True
    """

    clean: Tensor
    slope: Tensor
    rounding: Tensor
    norm: Norm
    lipschitz: float

    def deviation(self, eps: float) -> Tensor:
        """The largest change of each sample's outputs within eps, as a root mean square: (b,)."""
        if not 0 <= eps < math.inf:
            raise ValueError(f"Deviation: eps must be finite and not negative, got {eps}.")
        return (self.slope * eps + self.rounding) / DOWN

    def error(self, eps: float) -> Tensor:
        """An upper bound on the error of every point within eps: (b,)."""
        return self.clean + self.deviation(eps)

    def within(self, eps: float, tolerance: float) -> float:
        """The share of samples whose error is certified to stay within the tolerance."""
        return float((self.error(eps) <= tolerance).double().mean())

    def radius(self, tolerance: float) -> Tensor:
        """The radius within which each sample's error stays below the tolerance; 0 if it is above already: (b,)."""
        return ((tolerance - self.clean - self.rounding) / self.slope).clamp_min(0.0) * DOWN

    def as_dict(self) -> dict[str, Any]:
        lists = {name: getattr(self, name).tolist() for name in ("clean", "slope", "rounding")}
        return {"norm": self.norm, "lipschitz": self.lipschitz, **lists}


def certify_deviation(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor | None,
    gain: Gain | float,
    *,
    norm: Norm = "l2",
    lengths: Tensor | None = None,
) -> Deviation:
    """Run f on x (b, ...) and certify its real outputs; `gain` is that of f from x to all outputs together.

    y   real targets of the outputs' shape; None: the outputs themselves, so that `error` is the deviation alone

    Examples:
        >>> f = torch.nn.Linear(3, 1)
        >>> found = rv.analysis.certify_deviation(f, torch.randn(4, 3), None, float(f.weight.detach().norm()))
        >>> found.error(0.1).shape
        torch.Size([4])
    """
    check_choice("certify_deviation", "norm", norm, NORMS)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not len(x):
        raise ValueError("certify_deviation: x must be real (b, ...) with at least one sample.")
    if y is not None and (not isinstance(y, Tensor) or not y.is_floating_point()):
        raise TypeError("certify_deviation: y must hold real targets, or be None; classes go to certify.")
    lengths = check_lengths("certify_deviation", lengths, x)
    L, victim = positive(gain), Victim.of(f)
    with victim.attacked():
        output = victim.forward(x, lengths)
    if y is not None:
        check_targets("certify_deviation", output, y)
    flat = output.flatten(1) if output.dim() > 1 else output[:, None]
    allowance, growth = bound_errors(victim, x, flat, gain, lengths)  # of one output; growth of a difference of two
    m = flat.shape[1]
    clean = torch.zeros(len(x), dtype=torch.float64) if y is None else root_mean_square(output, y)
    slope = torch.full_like(clean, (L + math.sqrt(m) * growth) / math.sqrt(m))
    if norm == "linf":
        slope = slope * torch.as_tensor(own_entries(x, lengths), dtype=torch.float64, device=x.device).sqrt()
    return Deviation(clean, slope, 2 * allowance.expand(len(x)).to(clean), norm, L)
