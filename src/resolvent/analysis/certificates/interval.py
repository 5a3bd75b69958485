"""The exact output range of a linear recurrence whose input entries lie in intervals, not computed step by step.

For a discrete time-invariant system with the real impulse response h (direct term included) and inputs
u_s in [c_s - r_s, c_s + r_s],

    y_t in [ (h * c)_t - (|h| * r)_t,  (h * c)_t + (|h| * r)_t ]

and both ends are attained, by the signs of h: |h| * r is the L1 norm of the impulse response as it grows with time. A
radius constant in time takes one running sum; any other a convolution.

Stepping the recurrence in interval arithmetic would instead enclose the state in a box at each step; a complex
eigenvalue rotates that box and wraps it into a larger one, by up to sqrt(2) per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.certificates.error_bounds import impulse
from resolvent.analysis.certificates.padding import check_lengths, own_steps
from resolvent.ops.filter import fast_length, fft_conv
from resolvent.ssm.system import System, check_discrete

OUTWARD = 1e-9  # relative widening of radii at each stage, and
FLOOR = 1e-12  # relative to the largest value of the sample: rounding in float64 stays far below both


@dataclass(frozen=True, eq=False)
class Box:
    """All values within `radius` of `center`, entry by entry, in float64. The shapes broadcast.

    Examples:
        >>> box = rv.analysis.Box(torch.zeros(3), torch.full((3,), 0.1))
        >>> box.radius.max() <= 0.1
        tensor(True)
    """

    center: Tensor  # (b, ...)
    radius: Tensor  # (b or 1, ...), not negative

    @staticmethod
    def around(
        x: Tensor, eps: float | Tensor, bounds: tuple[Any, Any] | None = None, lengths: Tensor | None = None
    ) -> Box:
        """The Linf ball of radius eps, a number or one per sample (b,), clipped to `bounds`; padding is fixed.

        bounds   (low, high): numbers, or an entry per channel
        """
        x = x.detach().double()
        eps = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
        if not bool((eps >= 0).all()) or not bool(torch.isfinite(eps).all()):
            raise ValueError(f"Box: eps must be finite and not negative, got {eps}.")
        eps = eps.reshape(-1, *[1] * (x.dim() - 1))  # (b or 1, 1, ...)
        if lengths is not None:
            check_lengths("Box", lengths, x)
            eps = eps * own_steps(x, lengths)
        if bounds is None:
            return Box(x, eps.expand(-1, *x.shape[1:]))
        least, most = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in bounds)
        low, high = ((x + s * eps).clamp(least, most) for s in (-1, 1))
        return Box.between(torch.minimum(low, x), torch.maximum(high, x))  # always contains x, even outside the bounds

    @staticmethod
    def between(low: Tensor, high: Tensor) -> Box:
        return Box((low + high) / 2, (high - low) / 2)

    @property
    def low(self) -> Tensor:
        return self.center - self.radius

    @property
    def high(self) -> Tensor:
        return self.center + self.radius

    @property
    def size(self) -> Tensor:
        """The largest modulus, entry by entry."""
        return self.center.abs() + self.radius

    def widened(self) -> Box:
        """Widened for the rounding of the stage that made it."""
        scale = (self.center.abs() + self.radius).flatten(1).amax(1).reshape(-1, *[1] * (self.center.dim() - 1))
        return Box(self.center, self.radius * (1 + OUTWARD) + FLOOR * scale)

    def __contains__(self, x: Tensor) -> bool:
        return bool(((x >= self.low) & (x <= self.high)).all())


def system_box(system: System, box: Box) -> Box:
    """The tightest box around the outputs of a system for inputs in `box` (..., l, m): (..., l, p).

    A bank of systems with one input and output each takes one channel each: (..., l, d) -> (..., l, d).

    Examples:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> box = rv.analysis.Box(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
        >>> rv.analysis.system_box(rv.System(0.5 * one, one, one, 0 * one, dt=1.0), box).center.flatten()
        tensor([0., 0., 0.], dtype=torch.float64)
    """
    h = response(system, box.center.shape[-2])
    return Box(convolve(h, box.center), _radius(h, box.radius))


def system_radius(system: System, radius: Tensor) -> Tensor:
    """|h| * r for radii (..., l, m): the exact radius of the outputs.

    Examples:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> system = rv.System(-0.5 * one, one, one, 0 * one, dt=1.0)
        >>> rv.analysis.system_radius(system, torch.ones(1, 3, 1, dtype=torch.float64)).flatten()
        tensor([1.0000, 1.5000, 1.7500], dtype=torch.float64)
    """
    return _radius(response(system, radius.shape[-2]), radius)


def response(system: System, l: int) -> Tensor:
    """The impulse response in float64: (p, m, l), or (d, l) for a bank of d systems with one input and output."""
    _check(system)
    with torch.no_grad():
        h = impulse(system.wide(), l)
    return h[:, 0, 0] if system.bank else h


def convolve(h: Tensor, u: Tensor, reverse: bool = False) -> Tensor:
    """y_t = sum_s h_{t-s} u_s for u (..., l, m); `reverse` is its transpose, a_s = sum_t h_{t-s}^T a_t."""
    u = u.mT.flip(-1) if reverse else u.mT  # (..., m, l)
    if h.dim() == 2:
        y = fft_conv(u, h)
    elif not h.numel():  # no inputs or no outputs
        y = u.new_zeros(*u.shape[:-2], h.shape[1 if reverse else 0], u.shape[-1])
    else:
        n = fast_length(2 * u.shape[-1] - 1)
        pairs = "...pf,pmf->...mf" if reverse else "...mf,pmf->...pf"
        y = torch.fft.irfft(torch.einsum(pairs, torch.fft.rfft(u, n), torch.fft.rfft(h, n)), n)[..., : u.shape[-1]]
    return (y.flip(-1) if reverse else y).mT


def _radius(h: Tensor, radius: Tensor) -> Tensor:
    size = h.abs()
    if not radius.shape[-2] or not bool((radius == radius[..., :1, :]).all()):
        return convolve(size, radius).clamp_min(0.0)
    grown = size.cumsum(-1)  # (p, m, l) or (d, l): the L1 norm up to t
    first = radius[..., 0, :]  # (..., m)
    if h.dim() == 2:
        return first[..., None, :] * grown.mT
    return torch.einsum("pml,...m->...lp", grown, first)


def _check(system: System) -> None:
    check_discrete("system_box", system, "use layer.system()")
    if system.time_varying:
        raise ValueError(
            "system_box: a time-varying system is a selective layer seen at one input; a perturbed input selects "
            "another one, so its intervals would bound nothing. Use randomised smoothing."
        )
    if len(system.bank) > 1 or (system.bank and (system.inputs, system.outputs) != (1, 1)):
        raise ValueError(
            f"system_box: expected one system, or a bank of systems with one input and output; got a bank of "
            f"{tuple(system.bank)} with {system.inputs} inputs and {system.outputs} outputs; use block_diagonal()."
        )
