"""The unit ball of a norm: nearest points, steepest directions.

Nearest points are those of the ball intersected with a box, for delta (b, n), radius (b, 1) and finite
low <= 0 <= high; a sample's result does not depend on the others in the batch, bit for bit. Rounding may leave the
norm above the radius by a few units in the last place. Directions of unit norm are those along which a linear function
with gradient g (b, n) grows fastest.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 64  # each round of the L2 search fixes at least one coordinate at its bound; usually a few suffice
_RISE = 2e-6  # change of the squared factor below which the search stops
_TINY = 1e-30


def project_l2(delta: Tensor, radius: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """The nearest point is clip(s delta) for the largest s in [0, 1] in the ball (KKT conditions).

    s grows from the unclipped solution: what is clipped at the box is redistributed to the free coordinates, until
    nothing more is clipped. Every intermediate s is feasible, so stopping early is safe. The search is for t = s^2.
    """
    size, room = delta.square(), radius.square()
    t = (room / size.sum(1, keepdim=True).clamp_min(_TINY)).clamp_max(1.0)  # (b, 1)
    if low is None or high is None:
        return delta * t.sqrt()
    side = delta.sign()
    cap = torch.maximum(side * low, side * high).square()  # (b, n) towards the bound in delta's direction
    for _ in range(_ROUNDS):
        over = size * t - cap
        if not bool(over.amax() > 0):
            break
        cut = over.sign_().clamp_min_(0.0)  # 1 or 0: sums of products are faster than selections
        fixed = (cap * cut).sum(1, keepdim=True)
        free = (size * cut.neg_().add_(1.0)).sum(1, keepdim=True)
        raised = torch.where(free > 0, (room - fixed).clamp_min(0.0) / free.clamp_min(_TINY), 1.0).clamp_max(1.0)
        rising = raised > t * (1 + _RISE)
        if not bool(rising.any()):
            break
        t = torch.where(rising, raised, t)
    return (delta * t.sqrt()).clamp(low, high)


def project_l1(delta: Tensor, radius: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """The nearest point is sign(delta) * clip(|delta| - mu, 0, cap) with the smallest mu >= 0 in the ball.

    Its L1 norm falls piecewise linearly in mu, with kinks at |delta| - cap and |delta|: sort, walk down, interpolate.
    """
    size = delta.abs().double()
    cap = _cap(delta, low, high, size)
    start = (size - cap).clamp_min(0.0)  # below this mu the coordinate is at its cap
    kinks, order = torch.cat([start, size], 1).sort(1)  # (b, 2n)
    # A coordinate starts to fall at `start` and has vanished at `size`.
    turn = 1.0 - 2.0 * (order >= size.shape[1]).to(kinks.dtype)
    slope = turn.cumsum(1)
    fallen = (slope[:, :-1] * kinks.diff(dim=1)).cumsum(1)
    norm = torch.minimum(size, cap).sum(1, keepdim=True) - torch.cat([torch.zeros_like(kinks[:, :1]), fallen], 1)
    past = (norm > radius).sum(1, keepdim=True)  # kinks at which the norm is still too large
    at = (past - 1).clamp_min(0)
    excess = (norm.gather(1, at) - radius).clamp_min(0.0)
    mu = torch.where(past > 0, kinks.gather(1, at) + excess / slope.gather(1, at).clamp_min(1.0), 0.0)
    return delta.sign() * torch.minimum((size - mu).clamp_min(0.0), cap).to(delta.dtype)


def _cap(delta: Tensor, low: Tensor | None, high: Tensor | None, size: Tensor) -> Tensor:
    if low is None or high is None:
        return size
    return torch.where(delta > 0, high, -low).double()


def direction(norm: str, flat: Tensor) -> Tensor:
    """The steepest direction of unit norm for each row (b, n): signs for "linf", normalised for "l2"; 0 stays 0."""
    return flat.sign() if norm == "linf" else unit(flat)


_SMALL = 1e-12  # of a gradient's L2 norm, below which its squares may have underflown


def unit(flat: Tensor) -> Tensor:
    """Rows (b, n) at unit L2 norm; tiny and huge ones are scaled first, so that their squares stay in range."""
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    odd = ~((length > _SMALL) & torch.isfinite(length))
    if bool(odd.any()):
        peak = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
        flat = torch.where(odd, flat / peak, flat)
        length = torch.where(odd, torch.linalg.vector_norm(flat, dim=1, keepdim=True), length)
    return flat / safe(length)


def sparse(flat: Tensor, free: Tensor, share: float | Tensor) -> Tensor:
    """The sign of the `share` (number or (b,)) largest of `free` (b,) entries, equally weighted; others are 0."""
    n = flat.shape[1]  # masked entries are 0 and sort first
    kept = (free - ((1 - torch.as_tensor(share, device=flat.device)) * free).long()).clamp_min(1)
    skip = (n - kept).clamp(0, n - 1).expand(flat.shape[0])
    least = flat.abs().sort(1).values.gather(1, skip[:, None])
    signs = torch.where(flat.abs() >= least, flat.sign(), 0.0)
    return signs / safe(signs.abs().sum(1, keepdim=True))


def safe(length: Tensor) -> Tensor:
    return torch.where(length > 0, length, 1.0)
