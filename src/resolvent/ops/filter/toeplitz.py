"""Causal convolution with one kernel per channel as products with Toeplitz matrices, for fast matrix units.

x is laid out as (d, b, l), channels first and time last, so that y_c = x_c M_c with M_c[s, t] = k_{c, t-s} is one
batched product. Time is split into slices of T steps: the outputs of a slice [a, e) need only the inputs [0, e), which
skips the zero half, and the matrices of all slices are parts of one table of T columns (they depend on t - s):

    y[a:e]  = x[:e]  ahead[:, r:r+e]',   ahead[n, i] = k_{n - i + l - T},  r = l - T - a
    ∂x[a:e] = ∂y[a:] back[:, :l-a]',     back[n, i]  = k_{i - n}
    ∂k_s    = sum of ∂ahead where n - i + l - T = s,    ∂ahead[:, r:r+e]' = sum over slices of x[:e]' ∂y[a:e]

Products accumulate in float32 at least. The first slice has the remainder of l by T. On a GPU `toeplitz_triton` does
the same in one launch, with tables that extend to the end of the last slice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.filter.convolution import fft_correlation
from resolvent.ops.filter.operation import Filter
from resolvent.runtime.dispatch import choose, half_or, nothing
from resolvent.runtime.fallback import ABSENT, left_to_torch, triton_module

KERNELS = "ops.filter.toeplitz_triton"
SLICE = {"cpu": 64, "cuda": 128}  # steps of a slice: fewer skip more of the zero half, more use the matrix units better
Link = tuple[Tensor, Tensor]  # h (d, b, s) and a table (d, l, s): h table' is added to a product's result
SUMMED = 512  # steps beyond which the FFT is faster for a float32 kernel's gradient on a GPU


@dataclass(frozen=True)
class Toeplitz(Filter):
    """The kernel (d, l) and its two tables (d, T, l) in the dtype of the products.

    For float32 on a GPU a table is the sum of two, (2, d, T, l): see `toeplitz_triton`.
    """

    kernel: Tensor
    tables: Callable[[], tuple[Tensor, Tensor]]  # made at the first call

    @property
    def ahead(self) -> Tensor:
        return self.tables()[0]

    @property
    def back(self) -> Tensor:
        return self.tables()[1]

    @property
    def learned(self) -> tuple[Tensor, ...]:
        return (self.kernel,)

    def detached(self) -> Toeplitz:
        return Toeplitz(self.kernel.detach(), self.tables)

    def forward(self, x: Tensor, onto: Tensor | None = None, link: Link | None = None) -> Tensor:
        return product(x, self.ahead, False, onto, link)

    def adjoint(self, gy: Tensor, onto: Tensor | None = None, link: Link | None = None) -> Tensor:
        return product(gy, self.back, True, onto, link)

    def taps(self, x: Tensor, gy: Tensor) -> tuple[Tensor, ...]:
        return (kernel_gradient(x, gy, self.back.shape[-2]).to(self.kernel.dtype),)

    def plain(self, x: Tensor, *learned: Tensor) -> Tensor:
        return plain_product(x, *learned)


def toeplitz(kernel: Tensor, dtype: torch.dtype, size: int | None = None) -> Toeplitz:
    """The tables of kernel (d, l) for products in `dtype`, in slices of `size` steps."""
    l = kernel.shape[-1]
    T, values = min(size or SLICE.get(kernel.device.type, 64), l), kernel.detach()
    made = Toeplitz(kernel, cache(lambda: _tables(values, dtype, T)))
    if kernel.is_cuda:  # a CPU may run by lanes, which needs no tables
        made.tables()
    return made


@torch.no_grad()
def _tables(kernel: Tensor, dtype: torch.dtype, T: int) -> tuple[Tensor, Tensor]:
    quick = triton_module(KERNELS) if kernel.is_cuda else None
    if quick is not None:
        served = quick.takes(kernel, T, dtype)
        whole = F.pad(kernel, (0, -kernel.shape[-1] % T)) if served else kernel  # its kernels need whole slices
        found: tuple[Tensor, Tensor] = quick.tables(whole, dtype, T, served and dtype == torch.float32)
        return found
    windows = F.pad(kernel.to(dtype), (T - 1, 0)).unfold(-1, T, 1)  # (d, l, T), [i, n] = k_{i + n - T + 1}
    return windows.flip(1).mT.contiguous(), windows.flip(2).mT.contiguous()


def _quick(x: Tensor, T: int) -> Any:
    """The GPU's kernels if they support x; other cases are logged."""
    quick = triton_module(KERNELS) if x.is_cuda else None
    if quick is not None and quick.serves(x, T):
        return quick
    tell(x, x.shape[-1], x.dtype)
    return None


def tell(x: Tensor, l: int, dtype: torch.dtype) -> None:
    """Log why x of l steps falls back to torch on a GPU with the kernels; `chip` reports other GPUs."""
    if not x.is_cuda or not x.numel():
        return
    op = "Toeplitz products"
    if triton_module(KERNELS) is None:
        left_to_torch(x, op, ABSENT)
    elif dtype not in (torch.bfloat16, torch.float32):
        left_to_torch(x, op, str(dtype), logging.INFO)
    elif l < SLICE["cuda"]:
        left_to_torch(x, op, f"fewer than {SLICE['cuda']} steps")
    elif not x.is_contiguous():
        left_to_torch(x, op, "inputs whose numbers do not lie side by side")


def is_served(like: Tensor, l: int, dtype: torch.dtype) -> bool:
    """Whether products of l steps in `dtype` run in the GPU's own kernels on the device of `like`."""
    quick = triton_module(KERNELS) if like.is_cuda else None
    return quick is not None and bool(quick.takes(like, min(SLICE["cuda"], l), dtype))


def _read_table(table: Tensor, l: int, last: bool) -> Tensor:
    """(d, T, l) of a table that may be a sum of two and extend to the end of a slice: its first or last l columns."""
    table = table if table.dim() == 3 else table.sum(0)
    return table[..., table.shape[-1] - l :] if last else table[..., :l]


def slices(l: int, T: int) -> list[tuple[int, int]]:
    """[a, e) of T steps each, from the first, shorter one to the last."""
    first = l % T or T
    return [(0, first), *((a, a + T) for a in range(first, l, T))]


def product(x: Tensor, table: Tensor, back: bool, onto: Tensor | None = None, link: Link | None = None) -> Tensor:
    """y = x M of the table ahead, `back` ∂x = ∂y M' of the other; or added to `onto` in place. No graph is recorded."""
    T, l = table.shape[-2], x.shape[-1]
    quick = _quick(x, T)
    if quick is not None:
        return _multiply(quick, x, table, link, back=back, onto=onto)
    y, table = torch.empty_like(x) if onto is None else onto, _read_table(table, l, last=not back)
    for a, e in slices(l, T):
        r = l - T - a
        seen, M = (x[:, :, a:], table[:, : e - a, : l - a]) if back else (x[:, :, :e], table[:, : e - a, r : r + e])
        _write(seen, M.mT, y[:, :, a:e], onto is not None)
    return _add(y, link)


def _write(x: Tensor, M: Tensor, part: Tensor, adds: bool) -> None:
    """x M in the place of `part`, or added to it."""
    if adds:
        torch.baddbmm(part, x, M, out=part)
    else:
        torch.bmm(x, M, out=part)


def _multiply(quick: Any, x: Tensor, table: Tensor, link: Link | None, **how: Any) -> Tensor:
    """By the GPU's kernels, which add a link in their accumulators in half precision."""
    if link is None or choose("linked Toeplitz products", _LINKED, x.device, x.dtype) is nothing:
        return _add(quick.product(x, table, **how), link)
    found: Tensor = quick.product(x, table, link=link, **how)
    return found


_LINKED = half_or(nothing, lambda: triton_module(KERNELS).linked_agrees, lambda agrees, *here: bool(agrees(*here)))


def _add(y: Tensor, link: Link | None) -> Tensor:
    return y if link is None else y.baddbmm_(link[0], link[1].mT)


def kernel_gradient(x: Tensor, gy: Tensor, T: int) -> Tensor:
    """∂k (d, l), in float32 at least, from x and ∂y (d, b, l)."""
    if x.dtype == torch.float32:
        left_to_torch(x, "the kernel's gradient by Toeplitz products", "float32", logging.INFO)
        if x.is_cuda and x.shape[-1] > SUMMED:
            return fft_correlation(x, gy)
    quick = _quick(x, T) if x.dtype == torch.bfloat16 else None
    if quick is not None:
        found: Tensor = quick.kernel_gradient(x, gy)
        return found
    d, _, l = x.shape
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    g = x.new_zeros(d, l, T, dtype=wide)  # of the windows: ahead' with its rows reversed
    for a, e in slices(l, T):
        part = torch.bmm(x[:, :, :e].mT, gy[:, :, a:e])  # (d, e, e - a): row s is row l - T - a + s of ahead'
        g[:, T + a - e : T + a, : e - a] += part.flip(1)
    folded = torch.ops.aten.unfold_backward(g, [d, l + T - 1], 1, T, 1)
    return folded[:, T - 1 :]


def plain_product(x: Tensor, kernel: Tensor) -> Tensor:
    """The same with torch's own operations and the whole matrix: differentiable to any order."""
    l = kernel.shape[-1]
    M = F.pad(kernel.to(x.dtype), (l - 1, 0)).unfold(-1, l, 1).flip(1)  # (d, l, l), row s column t: k_{t - s}
    return x @ M
