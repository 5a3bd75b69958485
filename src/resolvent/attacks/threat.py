"""What the attacker may do: a norm ball of radius eps around x, inside bounds, on the entries that a mask leaves free.

This is the one place that knows norms: attacks ask it for directions, projections, starting points and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.region import Region
from resolvent.attacks.threat_border import check_bounds, check_eps, check_input, check_mask, check_norm

Norm = Literal["linf", "l2", "l1"]
Number = float | Tensor

_SMALL = 1e-12  # of a gradient's L2 norm, below which its squares may have underflown
_FAR = 1e18  # as good as infinitely far
_SPARSE = 0.05  # share of the entries that an L1 step moves unless the attack says otherwise


@dataclass(frozen=True, eq=False)
class Threat:
    """`Threat("linf", 8 / 255, bounds=(0, 1))`.

    norm    "linf", "l2" or "l1", over all axes but the batch
    eps     one radius, or one per sample (b,)
    bounds  None, or (low, high): numbers or tensors that broadcast to x (per feature, or per sample with x's rank)
    mask    None, or bool aligned with x's leading axes, e.g. (b, l) for x (b, l, d): False entries are never touched

    `threat = threat.check(x)` raises on anything that does not fit x and returns the threat with eps (b,) and bounds
    and mask of x's rank, which `select` can cut by sample.
    """

    norm: Norm
    eps: Number
    bounds: tuple[Number, Number] | None = None
    mask: Tensor | None = None
    _rank: int = field(default=0, repr=False)  # of the x it was fitted to; 0 before `check`

    def __post_init__(self) -> None:
        check_norm(self.norm)
        check_eps(self.eps)
        check_bounds(self.bounds)
        check_mask(self.mask)

    # -- fitting to a batch ----------------------------------------------------------------------------------------

    def check(self, x: Tensor) -> Threat:
        """Raise when the threat does not fit x; return it fitted."""
        check_input(x, self.eps, self.bounds, self.mask)
        eps = _radii(self.eps, x, _working(x))
        bounds = None if self.bounds is None else (_fit_bound(self.bounds[0], x), _fit_bound(self.bounds[1], x))
        mask = None if self.mask is None else _fit_mask(self.mask, x)
        return Threat(self.norm, eps, bounds, mask, x.dim())

    def with_lengths(self, lengths: Tensor, l: int) -> Threat:
        """The same threat for padded sequences (b, l, ...): positions from each length on are untouchable."""
        inside = torch.arange(l, device=lengths.device) < lengths[:, None]  # (b, l)
        if self.mask is not None:
            rank = max(self.mask.dim(), 2)  # a mask (b,) says of whole samples whether they may be touched
            inside = _aligned(inside, rank) & _aligned(self.mask.to(inside.device), rank)
        return replace(self, mask=inside)

    def scaled(self, factor: float) -> Threat:
        return replace(self, eps=self.eps * factor)

    def select(self, index: Tensor) -> Threat:
        """The threat of a subset: row numbers (repeats allowed) or a bool mask of the batch."""
        bounds = self.bounds
        if bounds is not None and not self._rank and any(isinstance(v, Tensor) and v.dim() > 1 for v in bounds):
            raise ValueError("Threat.select: bounds in tensors must know x's rank: use threat.check(x).select(index).")
        eps = _rows(self.eps, index) if isinstance(self.eps, Tensor) and self.eps.dim() else self.eps
        if bounds is not None and self._rank:
            bounds = (_rows(bounds[0], index), _rows(bounds[1], index))
        return replace(self, eps=eps, bounds=bounds, mask=None if self.mask is None else _rows(self.mask, index))

    # -- geometry --------------------------------------------------------------------------------------------------

    def radius(self, x: Tensor) -> Tensor:
        """eps shaped to multiply x: (b, 1, ...)."""
        return _radii(self.eps, x, x.dtype).view(-1, *[1] * (x.dim() - 1))

    def around(self, x: Tensor) -> Region:
        """The part of the space that the threat leaves around x: for many projections onto the same region."""
        free = None if self.mask is None else self._free(x)
        return Region.make(self.norm, x, self.radius(x).view(-1, 1), self._box(x), free)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest point of ball and bounds together; masked entries are x's own."""
        return self.around(x).project(x_adv)

    def steepest(self, grad: Tensor, share: Number = _SPARSE) -> Tensor:
        """Direction of unit norm along which a linear function grows fastest; 0 where the gradient is 0.

        L1: the sign of the `share` (number or (b,)) largest entries, spread evenly (sparse step, Croce & Hein 2021).
        """
        g = self.masked(grad)
        if self.norm == "linf":
            return g.sign()
        flat = g.flatten(1)
        if self.norm == "l2":
            return _unit(flat).view(g.shape)
        n, free = flat.shape[1], self.count(g)  # what the mask excludes is 0 and comes first
        kept = (free - ((1 - torch.as_tensor(share, device=g.device)) * free).long()).clamp_min(1)
        skip = (n - kept).clamp(0, n - 1).expand(flat.shape[0])
        least = flat.abs().sort(1).values.gather(1, skip[:, None])
        sparse = torch.where(flat.abs() >= least, flat.sign(), 0.0)
        return (sparse / _safe(sparse.abs().sum(1, keepdim=True))).view(g.shape)

    def random_start(
        self, x: Tensor, draws: Draws, *, surface: bool = False, stream: int = 0, counter: int = 0
    ) -> Tensor:
        """A point drawn uniformly from the ball (Linf: each entry), projected into the bounds.

        `surface` scales the draw to norm eps as APGD does (L1: a normal draw projected onto the ball).
        """
        shape, dtype = x.shape[1:], x.dtype
        if self.norm == "linf":
            noise = self.masked(2 * draws.uniform(stream, counter, shape, dtype) - 1)
            unit = noise / _safe(self._of(noise, torch.inf)) if surface else noise
            return self.project(x + self.radius(x) * unit, x)
        normal = self.masked(draws.normal(stream, counter, shape, dtype))
        if self.norm == "l1" and surface:
            return self.project(x + normal, x)
        noise = normal if self.norm == "l2" else self._laplace(x, draws, stream, counter)
        unit = noise / _safe(self._of(noise, 2 if self.norm == "l2" else 1))
        if not surface:
            unit = unit * self._depth(x, draws, stream, counter)
        return self.project(x + self.radius(x) * unit, x)

    def norm_of(self, delta: Tensor) -> Tensor:
        """(b,)."""
        flat = delta.flatten(1).to(_working(delta))
        if self.norm == "linf":
            return flat.abs().amax(1)  # ten times quicker than vector_norm on a CPU
        return torch.linalg.vector_norm(flat, 2 if self.norm == "l2" else 1, dim=1)

    def contains(self, x_adv: Tensor, x: Tensor, tol: float = 1e-6) -> Tensor:
        """Whether each x_adv keeps to ball, bounds and mask: (b,). `tol` is relative to max(1, |x|, eps)."""
        x_adv, x = x_adv.to(_working(x_adv)), x.to(_working(x))
        eps = self.radius(x).flatten()
        slack = tol * torch.maximum(x.flatten(1).abs().amax(1), eps).clamp_min(1.0)  # (b,)
        inside = self.norm_of(x_adv - x) <= eps + slack
        low, high = self._box(x)
        if low is not None and high is not None:
            over = torch.maximum(low - x_adv, x_adv - high).expand(x.shape).flatten(1).amax(1)
            inside &= over <= slack
        untouched = x_adv - x - self.masked(x_adv - x)
        return inside & (untouched.flatten(1) == 0).all(1) & torch.isfinite(x_adv).flatten(1).all(1)

    def masked(self, value: Tensor) -> Tensor:
        """value with 0 where nothing may change."""
        return value if self.mask is None else value * self._free(value)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _free(self, x: Tensor) -> Tensor:
        assert self.mask is not None
        return _aligned(self.mask, x.dim()).to(x.device)

    def count(self, x: Tensor) -> Tensor:
        """How many entries the attacker may change: (b,)."""
        if self.mask is None:
            return torch.full((x.shape[0],), x[0].numel(), device=x.device)
        return self._free(x).expand(x.shape).flatten(1).sum(1)

    def _box(self, x: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        if self.bounds is None:
            return None, None
        low, high = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in self.bounds)
        return low, high

    def _of(self, noise: Tensor, order: float) -> Tensor:
        return torch.linalg.vector_norm(noise.flatten(1), order, dim=1).view(-1, *[1] * (noise.dim() - 1))

    def _laplace(self, x: Tensor, draws: Draws, stream: int, counter: int) -> Tensor:
        u = draws.fold("laplace").uniform(stream, counter, x.shape[1:], torch.float64)
        sign = draws.fold("sign").sign(stream, counter, x.shape[1:], x.dtype)
        return self.masked(-torch.log1p(-u).to(x.dtype) * sign)

    def _depth(self, x: Tensor, draws: Draws, stream: int, counter: int) -> Tensor:
        """Radius of a uniform point of the unit ball of n free entries: U^(1/n).

        By logarithm, in float64: the last digit of torch's power hangs on how many others it is computed with.
        """
        n = self.count(x).clamp_min(1).double()
        u = draws.fold("depth").uniform(stream, counter, (), x.dtype).double()
        return torch.exp(torch.log(u) / n).to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def _radii(eps: Number, x: Tensor, dtype: torch.dtype) -> Tensor:
    """(b,); huge ones are cut, because their squares must be numbers."""
    most = min(_FAR, torch.finfo(dtype).max)  # of float16: below _FAR
    return torch.as_tensor(eps, dtype=dtype, device=x.device).clamp_max(most).expand(x.shape[0])


def _fit_bound(value: Number, x: Tensor) -> Tensor:
    bound = torch.as_tensor(value, dtype=_working(x), device=x.device)
    return bound.view(*[1] * (x.dim() - bound.dim()), *bound.shape)


def _fit_mask(mask: Tensor, x: Tensor) -> Tensor:
    return _aligned(mask.to(x.device), x.dim())


def _aligned(mask: Tensor, rank: int) -> Tensor:
    """A mask of x's leading axes, with axes of size 1 for the rest."""
    return mask.view(*mask.shape, *[1] * (rank - mask.dim()))


def _rows(value: Any, index: Tensor) -> Any:
    return value if value.shape[0] == 1 else value[index]


def _unit(flat: Tensor) -> Tensor:
    """Rows (b, n) at unit L2 norm; tiny and huge ones are scaled first, so that their squares stay in range."""
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    odd = ~((length > _SMALL) & torch.isfinite(length))
    if bool(odd.any()):
        peak = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
        flat = torch.where(odd, flat / peak, flat)
        length = torch.where(odd, torch.linalg.vector_norm(flat, dim=1, keepdim=True), length)
    return flat / _safe(length)


def _safe(length: Tensor) -> Tensor:
    return torch.where(length > 0, length, 1.0)


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def _working(x: Tensor) -> torch.dtype:
    return torch.float32 if _is_half(x) else x.dtype
