"""What follows the convolution in `fused`, forward and backward, in torch's operations.

    a = Wa y + ba,  s = sigma(a),  v = s y,  g = act(v),  u = W g + b,  z = r + final(u),  out = gamma unit(z) + beta

with unit(z) the values of each column less their mean, over their deviation. `forward` keeps unit(z) and 1/deviation,
and `backward` runs y -> u again where an activation makes the gradient depend on it (on a GPU, where that is dear, the
slopes of the activations are kept too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Weights:
    """Parameters as they are (differentiated) and `low`, the matrices in the dtype of the products."""

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
        """What the norm takes (4, d): the bias where it is added last, gamma, beta, eps."""
        bias = self.bias if self.final == "none" else torch.zeros_like(self.bias)
        return torch.stack([bias, self.gamma, self.beta, torch.full_like(bias, self.eps)]).detach()

    @cached_property
    def still(self) -> Weights:
        """The same without gradients."""
        return self.detached()

    @property
    def linear_in_y(self) -> bool:
        """The gradient in y does not depend on y."""
        return self.act == "none" and self.final == "none" and self.Wa is None

    def detached(self) -> Weights:
        W, bias, gamma, beta = (t.detach() for t in (self.W, self.bias, self.gamma, self.beta))
        Wa, ba = (None if t is None else t.detach() for t in (self.Wa, self.ba))
        return replace(self, W=W, bias=bias, gamma=gamma, beta=beta, Wa=Wa, ba=ba)


class Kept(NamedTuple):
    """What a forward pass leaves for the backward one."""

    unit: Tensor  # (d, b, l)
    rstd: Tensor  # (b l,), 1/deviation
    first: Tensor | None = None  # (c, b, l), act'(v)
    last: Tensor | None = None  # (d, b, l), final'(u)


def forward(y: Tensor, r: Tensor | None, w: Weights, keep: bool = True) -> tuple[Tensor, Kept | None]:
    """out (d, b, l) of y (c, b, l) and the skip r (d, b, l), and with `keep` what `backward` needs."""
    flat, shape = y.flatten(1), (-1, *y.shape[1:])
    skip = None if r is None else r.flatten(1)
    g = ACTS[w.act](_scale_inputs(flat, w)[1])
    z = w.low @ g if w.final == "none" else ACTS[w.final](torch.addmm(w.bias[:, None], w.low, g))
    out, rstd = normalise(z, skip, w.affine)
    return out.view(shape), Kept(z.view(shape), rstd) if keep else None


def backward(
    g: Tensor, kept: Kept, y: Tensor | None, w: Weights, learn: bool
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...] | None]:
    """The gradients of r and y and, with `learn`, those of W, bias, gamma, beta, Wa and ba."""
    d, shape, rstd = kept.unit.shape[0], kept.unit.shape[1:], kept.rstd
    g, unit = g.reshape(d, -1), kept.unit.flatten(1)
    flat = None if y is None else y.flatten(1)
    gz = slope(g, unit, rstd, w.gamma)
    a, v, u = _products(flat, w) if flat is not None and not w.linear_in_y else (None, flat, None)
    gw = gz if u is None else _through(gz, u, w.final)
    gv = w.low.t() @ gw
    gv = gv if w.act == "none" or v is None else _through(gv, v, w.act)
    gy, ga = gv, None
    if a is not None and flat is not None and w.low_a is not None:
        ga = _through(gv * flat, a, w.sigma)
        gy = torch.addmm(gv * ACTS[w.sigma](a), w.low_a.t(), ga)
    found = _find_gradients(g, unit, gw, ga, flat, v, w) if learn and v is not None else None
    return gz.view(d, *shape), gy.view(-1, *shape), found


def _scale_inputs(flat: Tensor, w: Weights) -> tuple[Tensor | None, Tensor]:
    """a and v."""
    if w.low_a is None or w.ba is None:
        return None, flat
    a = torch.addmm(w.ba[:, None], w.low_a, flat)
    return a, ACTS[w.sigma](a) * flat


def _products(flat: Tensor, w: Weights) -> tuple[Tensor | None, Tensor, Tensor]:
    """a, v and u."""
    a, v = _scale_inputs(flat, w)
    return a, v, torch.addmm(w.bias[:, None], w.low, ACTS[w.act](v))


def _through(g: Tensor, x: Tensor, act: str) -> Tensor:
    """g act'(x)."""
    if act == "none":
        return g
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(ACTS[act](x), x, g)[0]


def _find_gradients(
    g: Tensor, unit: Tensor, gw: Tensor, ga: Tensor | None, flat: Tensor | None, v: Tensor, w: Weights
) -> tuple[Tensor | None, ...]:
    W = gw @ ACTS[w.act](v).t()
    gWa, gba = (ga @ flat.t(), ga.sum(1)) if ga is not None and flat is not None else (None, None)
    return W, gw.sum(1), (g * unit).sum(1), g.sum(1), gWa, gba


def normalise(z: Tensor, r: Tensor | None, affine: Tensor) -> tuple[Tensor, Tensor]:
    """LayerNorm of the columns of z + bias + r: out (d, m) and 1 / deviation (m,); z is overwritten with unit.

    affine (4, d) holds bias, gamma, beta and, repeated, eps.
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
