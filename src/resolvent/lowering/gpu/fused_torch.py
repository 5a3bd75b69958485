"""The part of `fused` after the convolution, forward and backward, in torch operations.

    a = Wa y + ba,  s = sigma(a),  v = s y,  g = act(v),  u = W g + b,  z = r + final(u),  out = gamma unit(z) + beta

with unit(z) each column minus its mean, divided by its deviation. `forward` saves unit(z) and 1/deviation,
and `backward` recomputes y -> u with autograd (on a GPU, where that is costly, the activations' derivatives are saved).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.lowering.eager import CURVES


@dataclass(frozen=True)
class Weights:
    """The parameters (differentiated) and `low`, the matrices in the dtype of the products."""

    eps: float
    act: str
    final: str
    sigma: str
    dtype: torch.dtype
    W: Tensor  # (d, c)
    bias: Tensor  # (d,)
    gamma: Tensor  # (d,)
    beta: Tensor  # (d,)
    low: Tensor  # (d, c)
    Wa: Tensor | None = None  # (d, d), of adaptive scaling
    ba: Tensor | None = None  # (d,)
    low_a: Tensor | None = None  # (d, d)
    entry: bool = False  # its y is a view of x (b, l, c), and so is the gradient

    @cached_property
    def affine(self) -> Tensor:
        """The norm's arguments (4, d): the bias if added last, gamma, beta, eps."""
        bias = self.bias if self.final == "none" else torch.zeros_like(self.bias)
        return torch.stack([bias, self.gamma, self.beta, torch.full_like(bias, self.eps)]).detach()

    @cached_property
    def still(self) -> Weights:
        """The same, detached."""
        return self.detached()

    @property
    def linear_in_y(self) -> bool:
        """Whether the gradient in y does not depend on y."""
        return self.act == "none" and self.final == "none" and self.Wa is None

    def detached(self) -> Weights:
        """The same without gradients, each in rows without gaps, as kernels read it."""
        names = "W", "bias", "gamma", "beta", "low", "Wa", "ba", "low_a"
        held = {name: getattr(self, name) for name in names}
        return replace(self, **{name: t.detach().contiguous() for name, t in held.items() if t is not None})


class Kept(NamedTuple):
    """The tensors saved by a forward pass for its backward."""

    unit: Tensor  # (d, b, l)
    rstd: Tensor  # (b l,), 1/deviation
    first: Tensor | None = None  # (c, b, l), act'(v)
    last: Tensor | None = None  # (d, b, l), final'(u)


def forward(y: Tensor, r: Tensor | None, w: Weights, keep: bool = True) -> tuple[Tensor, Kept | None]:
    """out (d, b, l) of y (c, b, l) and the skip r (d, b, l), and with `keep` the tensors saved for `backward`."""
    z = _branch(y.flatten(1), w.low, w.bias if w.final != "none" else None, w.low_a, w.ba, w)
    out, rstd = normalise(z, None if r is None else r.flatten(1), w.affine)
    shape = -1, *y.shape[1:]
    return out.view(shape), Kept(z.view(shape), rstd) if keep else None


def backward(
    g: Tensor, kept: Kept, y: Tensor | None, w: Weights, learn: bool
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...] | None]:
    """The gradients of r and y and, with `learn`, those of W, bias, gamma, beta, Wa and ba."""
    d, shape = kept.unit.shape[0], kept.unit.shape[1:]
    g, unit = g.reshape(d, -1), kept.unit.flatten(1)
    gz = slope(g, unit, kept.rstd, w.gamma)
    flat = g.new_zeros(w.low.shape[1], g.shape[1]) if y is None else y.flatten(1)  # None: linear, the same everywhere
    own = [None if t is None else t.detach().requires_grad_() for t in (flat, w.low, w.bias, w.low_a, w.ba)]
    with torch.enable_grad():
        made = _branch(*own, w)  # type: ignore[call-arg]
    wanted = [t for t in (own if learn else own[:1]) if t is not None]
    gy, *found = torch.autograd.grad(made, wanted, gz.to(made.dtype))
    slopes: tuple[Tensor | None, ...] | None = None
    if learn:
        gW, gb, *more = found
        slopes = gW, gb.clone(), (g * unit).sum(1), g.sum(1), *(more or (None, None))  # gb may be a view of gz
    return gz.view(d, *shape), gy.view(-1, *shape), slopes


def _branch(y: Any, W: Any, bias: Any, Wa: Any, ba: Any, w: Any) -> Tensor:
    """final(u), or W g alone without a bias."""
    v = y if Wa is None else CURVES[w.sigma](torch.addmm(ba[:, None].to(Wa.dtype), Wa, y)) * y
    g = CURVES[w.act](v)
    return CURVES[w.final](W @ g if bias is None else torch.addmm(bias[:, None].to(W.dtype), W, g))


def normalise(z: Tensor, r: Tensor | None, affine: Tensor) -> tuple[Tensor, Tensor]:
    """LayerNorm of the columns of z + bias + r: out (d, m) and 1 / deviation (m,); z is overwritten with unit.

    affine (4, d) is bias, gamma, beta and, repeated, eps.
    """
    bias, gamma, beta, eps = affine[:, :, None].unbind(0)
    z.add_(bias)
    if r is not None:
        z.add_(r)
    z.sub_(z.mean(0))
    rstd = torch.rsqrt(z.square().mean(0) + eps[0])
    z.mul_(rstd)
    return z * gamma + beta, rstd


def slope(g: Tensor, unit: Tensor, rstd: Tensor, gamma: Tensor) -> Tensor:
    """∂z = (γ∂ - mean(γ∂) - unit mean(γ∂ unit)) / deviation, (d, m), from the gradient g of out."""
    gu = g * gamma[:, None]
    mean, along = gu.mean(0), (gu * unit).mean(0)
    return gu.sub_(mean).sub_(unit * along).mul_(rstd)
