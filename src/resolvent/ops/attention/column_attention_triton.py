"""The weights of `column_attention` by a Triton kernel that does not store scores.

A program handles some rows of one sequence and computes their scores twice: for their maximum and sum, and again for
the weights. Exponentials are powers of two, as in hardware.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from resolvent.runtime.launch import on_device

ROWS, COLUMNS = 128, 128  # tile of scores
DEEPEST = 128  # most channels of a product
LOG2E = tl.constexpr(math.log2(math.e))


def weigh(q: Tensor, k: Tensor, line: Tensor) -> Tensor:
    """softmax(q' k + line[i - j + l - 1]) over j, (b, i, j), of q, k (z, b, l)."""
    z, b, l = q.shape
    p = torch.empty((b, l, l), dtype=q.dtype, device=q.device)
    depth = min(max(16, triton.next_power_of_2(z)), DEEPEST)
    rows, columns = (tiles(t, depth, size) for t, size in ((q, ROWS), (k, COLUMNS)))
    with on_device(q):
        weights_kernel[(b * triton.cdiv(l, ROWS),)](
            rows, columns, line.contiguous(), p, l, z,
            WHOLE=l % ROWS == 0 and l % COLUMNS == 0, BI=ROWS, BJ=COLUMNS, BK=depth, num_warps=8, num_stages=2,
        )  # fmt: skip
    return p


def tiles(x: Tensor, depth: int, columns: int) -> TensorDescriptor:
    """x (c, b, l) as (b, c, l) for tiles of depth channels by this many columns of one sequence; rows, padded with
    zeros, are aligned to sixteen bytes."""
    step = 16 // x.element_size()
    x = F.pad(x, (0, -x.shape[-1] % step)) if x.shape[-1] % step or x.data_ptr() % 16 else x
    return TensorDescriptor.from_tensor(x.transpose(0, 1), [1, depth, columns])


@triton.jit
def _scores(q, Q, K, LINE, s, i, first_i, first_j, l, n, WHOLE, BI, BJ, BK):  # type: ignore[no-untyped-def]
    """One tile of scores times log2 e; q has the first BK channels of its rows."""
    acc = tl.dot(q.T, K.load([s, 0, first_j]).reshape(BK, BJ))
    for k in tl.static_range(BK, n, BK):
        acc = tl.dot(Q.load([s, k, first_i]).reshape(BK, BI).T, K.load([s, k, first_j]).reshape(BK, BJ), acc)
    j = first_j + tl.arange(0, BJ)
    bias = LINE + (i + l - 1)[:, None] - j[None, :]
    if WHOLE:
        return (acc + tl.load(bias).to(tl.float32)) * LOG2E
    live = (i < l)[:, None] & (j < l)[None, :]
    return tl.where((j < l)[None, :], (acc + tl.load(bias, mask=live, other=0.0).to(tl.float32)) * LOG2E, float("-inf"))


@triton.jit
def weights_kernel(  # type: ignore[no-untyped-def]
    Q, K, LINE, P, l, n: tl.constexpr, WHOLE: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr
):
    """Rows i of one sequence; Q and K (b, n, l) are tensor descriptors."""
    strips = tl.cdiv(l, BI)
    s, first_i = tl.program_id(0) // strips, tl.program_id(0) % strips * BI
    i = first_i + tl.arange(0, BI)
    q = Q.load([s, 0, first_i]).reshape(BK, BI)
    top, total = tl.full((BI,), float("-inf"), tl.float32), tl.zeros((BI,), tl.float32)
    for first_j in tl.range(0, l, BJ):
        x = _scores(q, Q, K, LINE, s, i, first_i, first_j, l, n, WHOLE, BI, BJ, BK)
        new = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp2(top - new) + tl.sum(tl.exp2(x - new[:, None]), 1)
        top = new
    top += tl.log2(total)
    at = (s.to(tl.int64) * l + i)[:, None] * l + tl.arange(0, BJ)[None, :]
    for first_j in tl.range(0, l, BJ):
        x = _scores(q, Q, K, LINE, s, i, first_i, first_j, l, n, WHOLE, BI, BJ, BK)
        p = tl.exp2(x - top[:, None]).to(P.dtype.element_ty)
        if WHOLE:
            tl.store(P + at + first_j, p)
        else:
            tl.store(P + at + first_j, p, mask=(i < l)[:, None] & (first_j + tl.arange(0, BJ) < l)[None, :])
