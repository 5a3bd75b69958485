"""out = norm(scale r + map(y) + bias) over the channels of (d, b, l) on a GPU with tile descriptors, and the
gradients of r and y alone, for attacks, which run eleven times as often as training passes.

    plain   W y        gelu   gelu(W gelu(y))        scaled   W (sigmoid(Wa y + ba) y)        bare   y

A forward pass writes out but not unit = (z - mean) / deviation, which the backward pass recovers from out; only if some
|beta| exceeds its |gamma|, so that rounding of out would make unit inaccurate, is unit also written. GELU's first
derivative is recomputed from y, its second is stored as a byte in lane order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from resolvent.ops.pointwise.post_norm_kernels import backward_kernel, forward_kernel
from resolvent.ops.pointwise.skip_norm import Ending
from resolvent.runtime import chip
from resolvent.runtime.launch import on_device

CHANNELS = (64, 128)  # powers of two that fill a warp group's products
NARROW = 8  # channels of an entry up to which an explicit sum is faster than a product
COLUMNS, WARPS = 64, 4  # per tile
AHEAD = {"plain": (3, 1), "bare": (3, 1), "scaled": (3, 1), "gelu": (2, 2), "entry": (3, 2)}  # tiles ahead, programs


class Block(NamedTuple):
    """The constants of a pass; kind: a row of AHEAD. "entry" is W y of few channels in float32, without a skip."""

    kind: str
    eps: float
    gamma: Tensor
    beta: Tensor
    W: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    Wa: Tensor | None = None
    ba: Tensor | None = None


class Kept(NamedTuple):
    """Tensors saved by a forward pass for its backward."""

    rows: Tensor  # (2 d, m): out, and unit if needed
    numbers: Tensor  # (m + 2 d,)
    y: Tensor | None
    codes: Tensor | None


def bare(w: Ending) -> Block:
    """norm(scale r + y)."""
    return Block("bare", w.eps, w.gamma, w.beta, scale=w.scale)


def serves(like: Tensor, d: int, c: int, dtype: torch.dtype, kind: str) -> bool:
    """Whether the kernels support (d, b, l) on the device of `like`."""
    wide = c <= NARROW if kind == "entry" else c == d
    return kind in AHEAD and wide and d in CHANNELS and dtype == torch.bfloat16 and chip.copies_tiles(like)


def aligns(b: int, l: int) -> bool:
    """Whether rows are aligned to sixteen bytes and indexable by 32 bits."""
    return b * l % 8 == 0 and b * l * CHANNELS[-1] < 2**31


def forward(y: Tensor, r: Tensor | None, w: Block, dtype: torch.dtype, keep: bool = True) -> tuple[Tensor, Kept | None]:
    """out (d, b, l) of y (c, b, l) and r (d, b, l)."""
    (c, b, l), d = y.shape, w.gamma.shape[0]
    m, entry = b * l, w.kind == "entry"
    y = y if entry else y.contiguous()
    rows = torch.empty((2 if keep else 1, d, b, l), dtype=dtype, device=y.device)
    numbers = torch.empty(m + 2 * d if keep else 1, dtype=torch.float32, device=y.device)
    padded = triton.cdiv(m, COLUMNS) * COLUMNS * d if keep and w.kind == "gelu" else 0
    codes = torch.empty(padded, dtype=torch.uint8, device=y.device) if padded else None
    with on_device(y):
        forward_kernel[(_programs(w, m, y),)](
            y if entry else _tiles(y, d), *_steps(y, entry), None if r is None else _tiles(r.contiguous(), d),
            w.W, w.bias, w.gamma, w.beta, w.scale, w.Wa, w.ba, _tiles(rows.flatten(0, 1), d), numbers, codes,
            m, w.eps, 0.0, d=d, c=c, KEEP=keep, **_options(w, y),
        )  # fmt: skip
    kept = Kept(rows, numbers, y if w.kind in ("gelu", "scaled") else None, codes) if keep else None
    return rows[0], kept


def backward(g: Tensor, kept: Kept, w: Block, c: int) -> tuple[Tensor | None, Tensor]:
    """The gradients of r and y from that of out; of an entry's y in float32, laid out as (b, l, c)."""
    _, d, b, l = kept.rows.shape
    m, entry = b * l, w.kind == "entry"
    flat = not (g.stride(2) == 0 and l >= COLUMNS)  # else the gradient of a mean over time
    g = g.contiguous() if flat else g
    gz = None if entry else torch.empty((d, b, l), dtype=kept.rows.dtype, device=g.device)
    if entry:
        gy = torch.empty((b, l, c), dtype=torch.float32, device=g.device).permute(2, 0, 1)
    else:
        gy = torch.empty((c, b, l), dtype=kept.rows.dtype, device=g.device)
    with on_device(g):
        backward_kernel[(_programs(w, m, g),)](
            _tiles(g, d) if flat else g, *g.stride()[:2], _tiles(kept.rows.flatten(0, 1), d), kept.numbers, kept.codes,
            None if kept.y is None else _tiles(kept.y, d), w.W, w.gamma, w.beta, w.scale, w.Wa, w.ba,
            None if gz is None else _tiles(gz, d), gy if entry else _tiles(gy, d), *_steps(gy, entry), m, l, b, 0.0,
            d=d, c=c, FLAT=flat, WHOLE=l % COLUMNS == 0, **_options(w, g),
        )  # fmt: skip
    return gz, gy


def _tiles(x: Tensor, d: int) -> TensorDescriptor:
    """x (rows, b, l) in tiles of d rows and some columns."""
    x = x.clone() if x.data_ptr() % 16 else x
    return TensorDescriptor.from_tensor(x.flatten(1), [d, COLUMNS])


def _steps(y: Tensor, entry: bool) -> tuple[int, int]:
    return (y.stride(0), y.stride(2)) if entry else (0, 0)


def _programs(w: Block, m: int, like: Tensor) -> int:
    """The number of concurrent programs, each of which loops over tiles."""
    tiles = triton.cdiv(m, COLUMNS)
    if not like.is_cuda:
        return tiles
    return min(tiles, AHEAD[w.kind][1] * torch.cuda.get_device_properties(like.device).multi_processor_count)


def _options(w: Block, like: Tensor) -> dict[str, Any]:
    entry = w.kind == "entry"
    return {
        "NARROW": entry, "GELU": w.kind == "gelu", "QUICK": chip.copies_tiles(like), "BM": COLUMNS,
        "AHEAD": AHEAD[w.kind][0], "WARPS": WARPS, "num_warps": WARPS,
    }  # fmt: skip
