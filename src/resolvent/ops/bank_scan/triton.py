"""Launches of `bank_scan`'s kernels between torch's batched products.

With u the input of a block and h the state before it, concatenated in one row (u | h) of T + s numbers, a pass is

    z = u M_in,    h by `carry_kernel`,    y = (u | h) ahead'                          ahead = (Toeplitz' | M_out)
    ∂h = ∂y M_out,  γ by `carry_back_kernel`,  ∂u = (∂y | γ) back'                     back  = (Toeplitz | M_in)

and (u | h)' (∂y | γ), one product, contains the gradients of all three tables.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.bank_scan import triton_kernels as kernels
from resolvent.ops.modes import triton as modes
from resolvent.ops.modes import triton_kernels as modes_kernels
from resolvent.ops.modes.operation import Kind
from resolvent.ops.product import multiply
from resolvent.runtime.launch import on_device

CHANNELS = 64  # of a transposed tile
SEQUENCES = 32  # per program of a dense carry
EXACT = 64  # numbers of a state up to which this does not need matrix units
LANES = 128  # state numbers per program of the carry, one per thread


class Tables(NamedTuple):
    """The tables of one bank for blocks of T steps, in the dtype of the products; `whole` is A^T in float32."""

    ahead: Tensor  # (d, T, T + s), row j: K_{j-i} for i <= j, then C A^{j+1}
    back: Tensor  # (d, T, T + s), row i: K_{j-i} for j >= i, then A^{T-1-i} B
    whole: Tensor  # (d, n, 2), or (d, n) of real numbers; of a dense bank (d, s, s), transposed
    dense: bool = False

    @property
    def steps(self) -> int:
        return self.ahead.shape[1]


class Rows(NamedTuple):
    """Saved by a pass: (u | h) of each block (d, b m, T + s), if parameters need gradients."""

    rows: Tensor | None
    lengths: Tensor | None
    shape: torch.Size  # of x


def make_tables(kind: Kind, parameters: Sequence[Tensor], T: int, delay: bool, dtype: torch.dtype) -> Tables:
    own, D, (d, n), like = modes.unpack_parameters(kind, parameters)
    number = () if kind is Kind.EMA else (2,)
    width = T + n * (2 if number else 1)
    ahead, back = (torch.empty((d, T, width), dtype=dtype, device=like.device) for _ in range(2))
    whole = torch.empty((d, n, *number), dtype=torch.float32, device=like.device)
    with on_device(like):
        modes_kernels.tables_kernel[(d,)](
            *own, None if delay else D, back, ahead, back[:, :, T:], ahead[:, :, T:], None, whole, n, T,
            width, width, width, modes.largest_logarithm(like),
            **modes.kernel_sizes(kind, own, n, T, delay),
        )  # fmt: skip
    return Tables(ahead, back, whole)


def run(tables: Tables, x: Tensor, h0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor, Rows]:
    """y (b, l, d) in x's dtype, the last state (b, d, s) in float32, and the rows saved for gradients."""
    T, (b, l, d) = tables.steps, x.shape
    m = -(-l // T)
    s = tables.ahead.shape[2] - T
    rows = _lay_in(x, m, tables, lengths)
    z = torch.bmm(rows[:, :, :T], tables.back[:, :, T:])
    end = torch.empty((b, d, s), dtype=torch.float32, device=x.device)
    if tables.dense:
        carry_dense(tables.whole, z, h0, rows[:, :, T:], end, b, back=False)
    else:
        with on_device(x):
            grid, sizes = _cut_lanes(tables, d * b)
            kernels.carry_kernel[grid](tables.whole, z, h0, rows[:, :, T:], end, b, d, m, *sizes, num_warps=4)
    y = torch.bmm(rows, tables.ahead.mT)
    return _lay_out(y, x.shape, x.dtype, lengths), end, Rows(rows, lengths, x.shape)


def gradients(
    tables: Tables, kept: Rows, gy: Tensor, g_end: Tensor | None, *, start: bool
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor | None] | None]:
    """∂x, with `start` ∂h0, and, if rows were saved, those of the tables: a product (d, T + s, T + s) and A^T's parts.

    Those of a dense A^T are in the product.
    """
    T, (b, l, d) = tables.steps, kept.shape
    m = -(-l // T)
    s = tables.ahead.shape[2] - T
    g_rows = _lay_in(gy, m, tables, kept.lengths)
    g = torch.bmm(g_rows[:, :, :T], tables.ahead[:, :, T:])
    g_h0 = torch.empty((b, d, s), dtype=torch.float32, device=gy.device) if start else None
    parts = None
    if tables.dense:
        carry_dense(tables.whole, g, g_end, g_rows[:, :, T:], g_h0, b, back=True)
    else:
        parts = None if kept.rows is None else torch.empty((d, b, s), dtype=torch.float32, device=gy.device)
        states = None if kept.rows is None else kept.rows[:, :, T:]
        with on_device(gy):
            grid, sizes = _cut_lanes(tables, d * b)
            kernels.carry_back_kernel[grid](
                tables.whole, g, g_end, states, g_rows[:, :, T:], g_h0, parts, b, d, m, *sizes, num_warps=4
            )
    gx = _lay_out(torch.bmm(g_rows, tables.back.mT), kept.shape, gy.dtype, kept.lengths)
    if kept.rows is None:
        return gx, g_h0, None
    return gx, g_h0, (multiply(kept.rows.mT, g_rows), parts)


def parameter_gradients(
    kind: Kind, parameters: Sequence[Tensor], found: tuple[Tensor, Tensor | None], T: int, delay: bool
) -> list[Tensor]:
    """The parameters' gradients from the product and parts of `gradients`."""
    product, parts = found
    assert parts is not None
    own, D, (d, n), like = modes.unpack_parameters(kind, parameters)
    width, b = product.shape[-1], parts.shape[1]
    slopes, out, last = modes.empty_gradients(kind, parameters, d, like, None if delay else D)
    with on_device(like):
        modes_kernels.gradient_kernel[(d,)](
            *own, product, product[:, :, T:], product[:, T:], None, parts, *out, last, n, T,
            width * width, width, width * width, width, width * width, 1, width, b, modes.largest_logarithm(like),
            **modes.kernel_sizes(kind, own, n, T, delay),
        )  # fmt: skip
    return modes.sum_shared(kind, slopes)


def carry_dense(
    whole: Tensor, z: Tensor, h0: Tensor | None, rows: Tensor, end: Tensor | None, b: int, back: bool,
    exact: bool = False,
) -> None:  # fmt: skip
    """h_{k+1} = h_k A^T + z_k of z (d, b m, s), h_k to rows (d, b m, s) of any stride; `exact`: without matrix units,
    if registers suffice."""
    d, count, s = z.shape
    precision = "tf32" if z.dtype == torch.bfloat16 else "tf32x3"  # three products give float32 accuracy
    with on_device(z):
        kernels.dense_carry_kernel[(d, triton.cdiv(b, SEQUENCES))](
            whole, z, h0, rows, end, b, d, count // b, s, rows.stride(1), BACK=back,
            PRECISION="ieee" if exact and s <= EXACT else precision, BB=16 if b <= 16 else SEQUENCES,
            BS=max(16, triton.next_power_of_2(s)), num_warps=4,
        )  # fmt: skip


def _lay_in(x: Tensor, m: int, tables: Tables, lengths: Tensor | None) -> Tensor:
    """x (b, l, d) as the first columns of rows (d, b m, T + s)."""
    (b, l, d), T, width = x.shape, tables.steps, tables.ahead.shape[2]
    rows = torch.empty((d, b * m, width), dtype=tables.ahead.dtype, device=x.device)
    with on_device(x):
        kernels.lay_in_kernel[(b * m, triton.cdiv(d, CHANNELS))](
            x, rows, lengths, *x.stride(), b, l, d, m, width, T=T, BC=CHANNELS, num_warps=4
        )
    return rows


def _lay_out(y: Tensor, shape: torch.Size, dtype: torch.dtype, lengths: Tensor | None) -> Tensor:
    """y (d, b m, T) as (b, l, d)."""
    (b, l, d), T = shape, y.shape[2]
    out = torch.empty(shape, dtype=dtype, device=y.device)
    m = y.shape[1] // b
    with on_device(y):
        kernels.lay_out_kernel[(b * m, triton.cdiv(d, CHANNELS))](
            y, out, lengths, b, l, d, m, T=T, BC=CHANNELS, num_warps=4
        )
    return out


def _cut_lanes(tables: Tables, count: int) -> tuple[tuple[int], tuple[int, int, bool, int, int]]:
    """The grid of a carry over `count` rows; and n, the width of a row in numbers, whether they are pairs, the cut."""
    n, pair = tables.whole.shape[1], tables.whole.dim() == 3
    padded = triton.next_power_of_2(n)
    lanes = max(LANES, padded)
    return (triton.cdiv(count * padded, lanes),), (n, tables.ahead.shape[2] // (2 if pair else 1), pair, padded, lanes)
