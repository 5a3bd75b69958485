"""Threat models: a norm ball of radius eps around x, within bounds, on the entries that a mask leaves free.

With an eps for each channel the ball is an ellipsoid (Linf: a box): ||delta / eps||_p <= 1, channel by channel. A
budget of time steps or a band of frequencies constrains a perturbation over time (shape.py).

Norms are handled here only: attacks take directions, projections, starting points and sizes from a threat.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws, draw_noise
from resolvent.attacks.threat.ball import direction, safe, sparse
from resolvent.attacks.threat.channels import is_channelwise, norm_of, split, spread, working_dtype
from resolvent.attacks.threat.checks import check_bounds, check_eps, check_input, check_mask, from_numpy, named_norm
from resolvent.attacks.threat.region import FAR, Region, below, further, number_below, rows_of, slack
from resolvent.attacks.threat.shape import (
    Band,
    Shape,
    align_time,
    check_shape,
    check_steps,
    find_heaviest,
    find_spans,
    keep_band,
    parse_band,
)
from resolvent.attacks.threat.shaped_region import ShapedRegion
from resolvent.attacks.threat.stretch import Stretch, StretchedRegion

Norm = Literal["linf", "l2", "l1"]
Number = float | Tensor
Sizes = Number | tuple[float, ...]  # a tuple: one for each channel

_SHAPES = 8  # number of batch shapes for which fits are cached
_TOLERANCE = 1e-6  # tolerated rounding of x outside its bounds
_SPARSE = 0.05  # default share of the entries that an L1 step moves
_HELD = 8.0  # units of rounding that a projection may leave between an entry and the bound that holds it


@dataclass(frozen=True, eq=False)
class Threat:
    """A threat model: a norm, a size, a range of values, optionally a budget of steps or a frequency band.

    norm    "linf", "l2" or "l1", over all axes but the batch
    eps     one radius; a tuple with one per channel; a tensor (b,) with one per sample; or a tensor of more
            axes that broadcasts to x. With different eps per channel sizes are measured in the weighted norm
            ||delta max(eps) / eps||_p <= max(eps), which is unweighted in the widest channel; a channel of eps 0 is
            never changed
    bounds  None, or (low, high): numbers, tuples with an entry per channel, or tensors that broadcast to x (per
            feature, or per sample with x's rank)
    mask    None, or bool aligned with x's leading axes, e.g. (b, l) for x (b, l, d): False entries never change
    steps   None, or the number of time steps (axis 1 of x) that may change at most
    band    None, or (low, high) in cycles per step, up to 0.5: the perturbation has no other frequencies along time;
            or a bool tensor (l // 2 + 1,) with an entry for each frequency of `torch.fft.rfft`

    `threat = threat.check(x)` raises if anything does not fit x, and returns the threat with eps (b,) and bounds
    and mask of x's rank, from which `select` takes samples.

    Examples:
        >>> threat = rv.Threat("linf", 8 / 255, bounds=(0, 1))
        >>> sparse = rv.Threat("linf", 0.5, steps=3)           # at most three time steps change
        >>> slow = rv.Threat("l2", 0.5, band=(0.0, 0.1))       # only low frequencies
        >>> threat.norm, sparse.steps, slow.band
        ('linf', 3, (0.0, 0.1))
    """

    norm: Norm
    eps: Sizes
    bounds: tuple[Sizes, Sizes] | None = None
    mask: Tensor | None = None
    steps: int | None = None
    band: Band | None = None
    _rank: int = field(default=0, repr=False)  # rank of the x it was fitted to; 0 before `check`
    _scale: Tensor | None = field(default=None, repr=False)  # (1 or b, ...): eps of each channel over the largest
    _spans: Tensor | None = field(default=None, repr=False)  # (b,): steps of padded samples, with a band
    _fits: dict[Any, Threat] = field(default_factory=dict, init=False, repr=False)  # fitted threats, by shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", named_norm(self.norm))
        object.__setattr__(self, "eps", from_numpy(self.eps))
        object.__setattr__(self, "bounds", from_numpy(tuple(v) if isinstance(v := self.bounds, list) else v))
        check_eps(self.eps)
        check_bounds(self.bounds)
        check_mask(self.mask)
        check_steps(self.steps)
        object.__setattr__(self, "band", parse_band(self.band))
        if self.steps is not None and self.band is not None:
            raise ValueError("Threat: give steps or band: a perturbation of few steps is never band-limited.")

    # -- fitting to a batch ----------------------------------------------------------------------------------------

    def check(self, x: Tensor) -> Threat:
        """Raise when the threat does not fit x; return it fitted."""
        key = (x.shape, x.dtype, x.device) if isinstance(x, Tensor) else None
        found = self._fits.get(key)
        if found is None:
            check_input(x, self.eps, self.bounds, self.mask)
            with torch.inference_mode(False):  # a later call may want gradients
                found = self._fit(x)
            if self._holds_numbers:
                if len(self._fits) >= _SHAPES:
                    self._fits.clear()
                self._fits[key] = found
        found._check_values(x)
        return found

    def _check_values(self, x: Tensor) -> None:
        """For a fitted threat: x must be finite and within its bounds."""
        if not bool(torch.isfinite(x).all()):
            raise ValueError("Threat: x holds NaN or infinity; clean the input first.")
        low, high = self.box(x)
        if low is None or high is None:
            return
        slack = _TOLERANCE * x.abs().clamp_min(1.0)
        if bool((x < low - slack).any()) or bool((x > high + slack).any()):
            raise ValueError(
                f"Threat: the bounds exclude the input: x reaches from {float(x.min()):.6g} to {float(x.max()):.6g}, "
                f"the bounds from {float(low.min()):.6g} to {float(high.max()):.6g}; scale x, or pass bounds that hold "
                "for it."
            )

    def _fit(self, x: Tensor) -> Threat:
        """The threat for batches of the shape, dtype and device of x."""
        if self._own:
            eps, scale, touchable = split(self.eps, x, working_dtype(x))
        else:
            eps, scale, touchable = _radii(self.eps, x, working_dtype(x)), self._scale, None
        bounds = None if self.bounds is None else self.box(x, working_dtype(x))
        mask = None if self.mask is None else _align(self.mask.to(x.device), x.dim())
        if touchable is not None:
            mask = touchable if mask is None else mask & touchable
        check_shape(x, self.steps, self.band)
        spans = None if self.band is None else find_spans(mask, x)
        return Threat(self.norm, eps, bounds, mask, self.steps, self.band, x.dim(), scale, spans)

    @property
    def _holds_numbers(self) -> bool:
        """Whether it consists of plain numbers; tensors could be modified in place."""
        given = (self.eps, *(self.bounds or ()), self.mask, self.band, self._scale)
        return not any(isinstance(value, Tensor) for value in given)

    def with_lengths(self, lengths: Tensor, l: int) -> Threat:
        """The same threat for padded sequences (b, l, ...): positions from each length on may not change."""
        inside = torch.arange(l, device=lengths.device) < lengths[:, None]  # (b, l)
        if self.mask is not None:
            rank = max(self.mask.dim(), 2)  # a mask (b,) applies to whole samples
            inside = _align(inside, rank) & _align(self.mask.to(inside.device), rank)
        return replace(self, mask=inside)

    def scaled(self, factor: float) -> Threat:
        eps = self.eps
        return replace(self, eps=tuple(e * factor for e in eps) if isinstance(eps, tuple) else eps * factor)

    def select(self, index: Tensor) -> Threat:
        """The threat of a subset: row indices (repeats allowed) or a bool mask of the batch."""
        bounds, given = self.bounds, (self.eps, *(self.bounds or ()))
        if not self._rank and any(isinstance(v, Tensor) and v.dim() > 1 for v in given):
            raise ValueError("Threat.select: tensors must know x's rank: use threat.check(x).select(index).")
        eps = rows_of(self.eps, index) if isinstance(self.eps, Tensor) and self.eps.dim() else self.eps
        if bounds is not None and self._rank:
            bounds = (rows_of(bounds[0], index), rows_of(bounds[1], index))
        mask, scale = rows_of(self.mask, index), rows_of(self._scale, index)
        spans = None if self._spans is None else self._spans[index]
        return replace(self, eps=eps, bounds=bounds, mask=mask, _scale=scale, _spans=spans)

    @property
    def shaped(self) -> bool:
        """Whether there is a constraint over time beyond ball, bounds and mask."""
        return self.steps is not None or self.band is not None

    def unshaped(self) -> Threat:
        """The same without the constraint over time."""
        return replace(self, steps=None, band=None, _spans=None)

    # -- geometry --------------------------------------------------------------------------------------------------

    def radius(self, x: Tensor) -> Tensor:
        """eps shaped to multiply x: (b, 1, ...); the largest if channels differ."""
        radii = split(self.eps, x, x.dtype).radius if self._own else _radii(self.eps, x, x.dtype)
        return radii.view(-1, *[1] * (x.dim() - 1))

    def scale(self, x: Tensor) -> Tensor | None:
        """What each channel's eps is of the largest, shaped to multiply x: (1 or b, ...); None: all are the same."""
        scale = split(self.eps, x, working_dtype(x)).scale if self._own else self._scale
        return None if scale is None else scale.to(x.device, x.dtype)

    def around(self, x: Tensor) -> Region:
        """The allowed region around x, for many projections onto it."""
        if self._own or (self.band is not None and not self._rank):
            return self.check(x).around(x)
        if self.shaped:
            return ShapedRegion.around(self.unshaped().around(x), self._shape(x))
        free, eps, stretch = None if self.mask is None else self._free(x), self.radius(x), self.stretch(x)
        if stretch is None:
            return Region.make(self.norm, x, eps.view(-1, 1), self.box(x), free)
        if self.norm == "linf":
            reach = eps.double() * stretch.scale.double()
            return Region.box(x, reach, (stretch.low, stretch.high), free, eps.view(-1, 1))
        home = torch.zeros_like(x)
        return StretchedRegion.around(stretch, self.stretched(stretch).around(home))

    def stretch(self, x: Tensor) -> Stretch | None:
        """The coordinates in which the ball is a plain one; None if it is already."""
        scale = self.scale(x)
        return None if scale is None else Stretch(x, scale, *self.box(x))

    def stretched(self, stretch: Stretch) -> Threat:
        """The same threat, fitted, on v = `stretch.enter(point)`, around 0."""
        return replace(self, bounds=stretch.bounds(), _scale=None)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest point of ball and bounds together; masked entries keep x's values."""
        return self.around(x).project(x_adv)

    def steepest(self, grad: Tensor, share: Number = _SPARSE, at: Tensor | None = None) -> Tensor:
        """Direction of unit norm along which a linear function grows fastest; 0 where the gradient is 0.

        L1: the sign of the `share` (number or (b,)) largest entries, equally weighted (sparse step, Croce & Hein 2021);
        for a step from `at`, of those that no bound holds there.
        """
        grad = grad if at is None else self.drop_held(grad, at)
        if self.shaped:
            return self._along_shape(grad, share)
        scale = self.scale(grad)
        if scale is not None:  # steepest in v = delta / scale, where the gradient is multiplied by scale
            return scale * replace(self, _scale=None, _rank=grad.dim()).steepest(scale * grad, share)
        g = self.masked(grad)
        flat = g.flatten(1)
        steepest = sparse(flat, self.count(g), share) if self.norm == "l1" else direction(self.norm, flat)
        return steepest.view(g.shape)

    def drop_held(self, grad: Tensor, at: Tensor) -> Tensor:
        """The gradient; in L1 0 where `at` is at the bound towards which it points.

        What a step spends there is cut off (SLIDE, Tramèr & Boneh 2019; Maini et al. 2020), and an L1 step spends all
        on few entries. Steps in the other norms move every entry.
        """
        low, high = self.box(at) if self.norm == "l1" else (None, None)
        if low is None or high is None:
            return grad
        room = torch.where(grad > 0, high - at, at - low)
        rounding = torch.finfo(at.dtype).eps * (at.abs() + self.radius(at))
        return grad.masked_fill(room <= _HELD * rounding, 0.0)

    def random_start(
        self,
        x: Tensor,
        draws: Draws,
        *,
        surface: bool = False,
        stream: int = 0,
        counter: int = 0,
        region: Region | None = None,
    ) -> Tensor:
        """A point drawn uniformly from the ball (Linf: each entry), projected into the bounds.

        `surface` scales the draw to norm eps as APGD does (L1: a normal draw projected onto the ball). `region` is
        `around(x)`, if already computed.
        """
        step = draw_noise(self.norm, draws, (stream, counter), x, self.masked, self.count(x), surface)
        scale = self.scale(x)
        step = step if scale is None else step * scale
        if self.band is not None:  # a narrow band leaves little of the noise
            step = self._full(keep_band(step, self.band, self._spans)) * (1.0 if surface else _depth(draws, x))
        region = self.around(x) if region is None else region
        return region.project(x + (step if self.norm == "l1" and surface else self.radius(x) * step))

    def norm_of(self, delta: Tensor) -> Tensor:
        """(b,); the weighted norm if channels differ in eps."""
        return norm_of(self.norm, delta, self.scale(delta))

    def contains(self, x_adv: Tensor, x: Tensor, tol: float = 1e-6) -> Tensor:
        """Whether each x_adv keeps to ball, bounds and mask: (b,). `tol` is relative to max(1, |x|, eps), and to eps in
        a ball with an eps for each channel."""
        x_adv, x = x_adv.to(working_dtype(x_adv)), x.to(working_dtype(x))
        if self._own:
            return self.check(x).contains(x_adv, x, tol)
        eps = self.radius(x).flatten()
        slack = tol * torch.maximum(x.flatten(1).abs().amax(1), eps).clamp_min(1.0)  # (b,)
        if self._scale is None:
            inside = self.norm_of(x_adv - x) <= eps + slack
        else:
            inside = self.norm_of(x_adv.double() - x.double()) <= eps * (1 + tol)
        low, high = self.box(x)
        if low is not None and high is not None:
            over = torch.maximum(low - x_adv, x_adv - high).expand(x.shape).flatten(1).amax(1)
            inside &= over <= slack
        if self.shaped:
            inside &= self._shape(x).holds(x_adv - x, slack)
        untouched = x_adv - x - self.masked(x_adv - x)
        return inside & (untouched.flatten(1) == 0).all(1) & torch.isfinite(x_adv).flatten(1).all(1)

    def holds(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Whether each x_adv is in the ball in exact arithmetic, without bounds and mask: (b,). For fitted threats."""
        scale, eps = self._scale, self.radius(x).double()
        if self.norm == "linf":
            reach = eps if scale is None else eps * scale.double()
            return ~further(x, x_adv, reach).flatten(1).any(1)
        size = self.norm_of(x_adv.double() - x.double())
        return size <= eps.flatten() * (1 - slack(x.dtype, x[0].numel()) / 2)

    def masked(self, value: Tensor) -> Tensor:
        """value with 0 where nothing may change."""
        return value if self.mask is None else value * self._free(value)

    # -- shapes over time ------------------------------------------------------------------------------------------

    def _shape(self, x: Tensor) -> Shape:
        low, high = self.box(x)
        return Shape(self.steps, self.band, self._spans, low, high, self.scale(x))

    def _along_shape(self, grad: Tensor, share: Number) -> Tensor:
        """A direction of unit norm within the constraint over time: the steepest over the best steps, or filtered."""
        unshaped = self.unshaped()
        if self.steps is not None:
            scale = self.scale(grad)
            g = self.masked(grad if scale is None else scale * grad)
            size = (g[..., None] if g.dim() == 2 else g).flatten(2)  # (b, l, d)
            order = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}[self.norm]  # of the dual norm
            kept = find_heaviest(torch.linalg.vector_norm(size, order, dim=2), self.steps)
            return unshaped.steepest(grad * align_time(kept, grad.dim()), share)
        assert self.band is not None
        up = unshaped.steepest(keep_band(self.masked(grad), self.band, self._spans), share)
        return self._full(keep_band(up, self.band, self._spans))

    def _full(self, delta: Tensor) -> Tensor:
        """Scaled to unit norm; 0 stays 0."""
        return delta / safe(self.norm_of(delta).view(-1, *[1] * (delta.dim() - 1)))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _free(self, x: Tensor) -> Tensor:
        assert self.mask is not None
        return _align(self.mask, x.dim()).to(x.device)

    def count(self, x: Tensor) -> Tensor:
        """The number of entries that may change: (b,)."""
        if self.mask is None:
            return torch.full((x.shape[0],), x[0].numel(), device=x.device)
        return self._free(x).expand(x.shape).flatten(1).sum(1)

    def box(self, x: Tensor, dtype: torch.dtype | None = None) -> Any:
        """The bounds, of x's rank; (None, None) without."""
        if self._rank and self.bounds is not None:
            return tuple(torch.as_tensor(v, dtype=dtype or x.dtype, device=x.device) for v in self.bounds)
        return (None, None) if self.bounds is None else tuple(spread(v, x, dtype or x.dtype) for v in self.bounds)

    @property
    def _own(self) -> bool:
        """Whether eps is per channel and not yet fitted to an input."""
        return not self._rank and is_channelwise(self.eps)


def _radii(eps: Sizes, x: Tensor, dtype: torch.dtype) -> Tensor:
    """(b,); huge ones are limited, because their squares must be finite."""
    most = min(FAR, torch.finfo(dtype).max)  # of float16: below FAR
    if isinstance(eps, Tensor):
        radii = below(eps.to(x.device), dtype)
    else:
        radii = torch.tensor(number_below(float(eps), dtype), dtype=dtype, device=x.device)  # type: ignore[arg-type]
    return radii.clamp_max(most).expand(x.shape[0])


def _depth(draws: Draws, x: Tensor) -> Tensor:
    """The relative radius of a random point, in (0, 1]: (b, 1, ...)."""
    return 1 - draws.fold("band").uniform(0, 0, (), x.dtype).view(-1, *[1] * (x.dim() - 1))


def _align(mask: Tensor, rank: int) -> Tensor:
    """A mask of x's leading axes, with axes of size 1 for the rest."""
    return mask.view(*mask.shape, *[1] * (rank - mask.dim()))
