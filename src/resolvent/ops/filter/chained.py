"""The causal filter of a system with s states (`filter`) at a cost linear in the length: blocks of T steps, each a
Toeplitz product, and a state from one block to the next. With the tables of `blocked`,

    y_k = u_k Toeplitz + h_k M_out',     h_{k+1} = A^T h_k + u_k M_in                     u_k (T,) of m blocks, h_0 = 0
    ∂u_k = ∂y_k Toeplitz' + γ_{k+1} M_in',    γ_k = ‾A^T γ_{k+1} + ∂y_k M_out              γ_m = 0

Products take operands in the dtype of x; their contributions to the states, and the carry, are in float32 at least.
If the last block is not full x is padded; a single block is a Toeplitz product of a length supported by the GPU's
kernels.

Shape letters: d channels, b batch, m blocks, T steps of a block, s reals of a state (see `blocked`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.blocked.carry import form_states
from resolvent.ops.blocked.chain import along, chain
from resolvent.ops.filter.operation import Filter
from resolvent.ops.filter.toeplitz import Link, Toeplitz, plain_product, toeplitz
from resolvent.ops.product import multiply


@dataclass(frozen=True)
class Chained(Filter):
    """`learned`: the first T numbers of the kernel (d, T) and, if there are several blocks, M_in and M_out (d, T, s)
    and A^T, (d, n) or transposed (d, s, s)."""

    within: Toeplitz
    links: tuple[Tensor, ...]  # M_in, M_out and A^T, or none
    tables: Callable[[], tuple[Tensor, ...]]  # the first two in the dtype of the products, without gradients

    @property
    def learned(self) -> tuple[Tensor, ...]:
        return (*self.within.learned, *self.links)

    def detached(self) -> Chained:
        return replace(self, within=self.within.detached(), links=tuple(t.detach() for t in self.links))

    def forward(self, x: Tensor) -> Tensor:
        u = self._rows(x)  # (d, b m, T)
        y = self.within.forward(u, link=self._outwards(u, x))
        return self._cut(y, x)

    def adjoint(self, gy: Tensor, onto: Tensor | None = None) -> Tensor:
        g = self._rows(gy)
        whole = onto is not None and g.numel() == gy.numel()
        place = onto.view(g.shape) if onto is not None and whole else None
        gu = self.within.adjoint(g, place, link=self._inwards(g, gy))
        gx = self._cut(gu, gy)
        return gx if onto is None or whole else onto.add_(gx)

    def taps(self, x: Tensor, gy: Tensor) -> tuple[Tensor, ...]:
        u, g, split = self._rows(x), self._rows(gy), self._split(x)
        first = self.within.taps(u, g)
        if not self.links:
            return first
        M_in, M_out, whole = self.links
        h, gamma = self._before(u, split), self._after(g, split)  # (d, b, m, s)
        into, out = multiply(u.mT, _flat(gamma, u.dtype)), multiply(g.mT, _flat(h, g.dtype))
        return *first, into.to(M_in.dtype), out.to(M_out.dtype), _of_whole(whole, h, gamma)

    def plain(self, x: Tensor, *learned: Tensor) -> Tensor:
        kernel, *links = learned
        u = self._rows(x)
        y = plain_product(u, kernel)
        if links:
            M_in, M_out, whole = links
            z = (u @ M_in.to(u.dtype)).unflatten(1, self._split(x))
            h = along(whole, F.pad(z[:, :, :-1], (0, 0, 1, 0)).to(M_in.dtype))
            y = y + _flat(h, y.dtype) @ M_out.mT.to(y.dtype)
        return self._cut(y, x)

    def _rows(self, x: Tensor) -> Tensor:
        """(d, b, l) -> (d, b m, T), zeros beyond the end."""
        T = self.within.kernel.shape[-1]
        left = -x.shape[-1] % T
        return (F.pad(x, (0, left)) if left else x).reshape(x.shape[0], math.prod(self._split(x)), T)

    def _split(self, x: Tensor) -> tuple[int, int]:
        """b and m of x (d, b, l)."""
        return x.shape[1], -(-x.shape[-1] // self.within.kernel.shape[-1])

    def _cut(self, y: Tensor, like: Tensor) -> Tensor:
        """(d, b m, T) -> (d, b, l)."""
        b, m = self._split(like)
        return y.view(like.shape[0], b, m * y.shape[-1])[..., : like.shape[-1]].contiguous()

    def _outwards(self, u: Tensor, x: Tensor) -> Link | None:
        """The states before each block, and their contribution to its outputs."""
        return (self._before(u, self._split(x), u.dtype).flatten(1, 2), self.tables()[1]) if self.links else None

    def _inwards(self, g: Tensor, gy: Tensor) -> Link | None:
        """The gradients of the states after each block, and their contribution to its inputs' gradients."""
        return (self._after(g, self._split(gy), g.dtype).flatten(1, 2), self.tables()[0]) if self.links else None

    def _before(self, u: Tensor, split: tuple[int, int], dtype: torch.dtype | None = None) -> Tensor:
        """The states before each block (d, b, m, s), in the carry's dtype, or another."""
        M_in, _ = self.tables()
        z = multiply(u, M_in).unflatten(1, split)
        return chain(self.links[2], z, dtype or z.dtype)

    def _after(self, g: Tensor, split: tuple[int, int], dtype: torch.dtype | None = None) -> Tensor:
        """The gradients of the states after each block (d, b, m, s)."""
        _, M_out = self.tables()
        z = multiply(g, M_out).unflatten(1, split)
        whole = self.links[2]
        back = whole.mT if whole.dim() == 3 else whole.conj()
        return chain(back, z, dtype or z.dtype, reverse=True)


def make_chained(kernel: Tensor, links: tuple[Tensor, ...], dtype: torch.dtype) -> Chained:
    """The filter whose first T steps are kernel (d, T), with `block_tables.links` if there are more."""
    low = [t.detach() for t in links[:2]]
    made = Chained(toeplitz(kernel, dtype), links, cache(lambda: tuple(t.to(dtype) for t in low)))
    made.tables()  # now rather than during a pass
    return made


def _flat(h: Tensor, dtype: torch.dtype) -> Tensor:
    return h.flatten(1, 2).to(dtype)


def _of_whole(whole: Tensor, h: Tensor, gamma: Tensor) -> Tensor:
    """The gradient of A^T: of a diagonal one sum over b and k of ‾h_k γ_{k+1}."""
    if whole.dim() == 3:
        return (h.flatten(1, 2).mT @ gamma.flatten(1, 2)).to(whole.dtype)
    return (form_states(h, whole).conj() * form_states(gamma, whole)).sum((1, 2)).to(whole.dtype)
