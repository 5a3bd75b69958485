"""Bidirectional softmax attention with a relative bias, with channels first: q, k (z, b, l), v, o (w, b, l).

    o_i = sum_j p_ij v_j,    p = softmax over j of q_i·k_j + line_{i - j}                    q is scaled already

On a GPU one kernel writes p, followed by batched products whose operands and results are views of the channels-first
arrays. At l = 1024 a flash kernel would save little: it would have to recompute in the backward what it does not
store. The line (2l - 1) holds the bias by distance, from -(l - 1).
"""

from __future__ import annotations

import torch
from torch import Tensor


def bias_line(table: Tensor, length: int) -> Tensor:
    """The line for `length` steps of a table (2 size - 1,) whose end entries apply to all larger distances."""
    size = (table.shape[0] + 1) // 2
    if length <= size:
        return table[size - length : size - 1 + length]
    more = length - size
    return torch.cat([table[:1].expand(more), table, table[-1:].expand(more)])


def plain_column_attention(q: Tensor, k: Tensor, v: Tensor, line: Tensor) -> Tensor:
    """The same in torch operations."""
    l = q.shape[2]
    at = torch.arange(l, device=q.device)
    scores = torch.einsum("zbi,zbj->bij", q, k) + line.to(q.dtype)[at[:, None] - at + l - 1]
    return torch.einsum("bij,wbj->wbi", torch.softmax(scores, -1), v)


def average(p: Tensor, v: Tensor) -> Tensor:
    """o, without recording a graph."""
    o = torch.empty_like(v)
    torch.bmm(_channels(v), p.mT, out=_channels(o))
    return o


def attend_backward(
    inputs: tuple[Tensor, Tensor, Tensor], p: Tensor, g: Tensor, gs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from those of o and of the scores (b, i, j)."""
    q, k, _ = inputs
    gq, gk, gv = (torch.empty_like(t) for t in inputs)
    torch.bmm(_channels(g), p, out=_channels(gv))
    torch.bmm(_channels(k), gs.mT, out=_channels(gq))
    torch.bmm(_channels(q), gs, out=_channels(gk))
    return gq, gk, gv


def _channels(x: Tensor) -> Tensor:
    """(c, b, l) as (b, c, l)."""
    return x.permute(1, 0, 2)


def sum_diagonals(g: Tensor) -> Tensor:
    """Sums of g (b, l, l) over the batch and each diagonal i - j: (2l - 1,), from -(l - 1) on.

    With reversed columns, in rows of 2l, a diagonal is a column of stride 2l - 1.
    """
    l = g.shape[1]
    total = g.sum(0, dtype=torch.promote_types(g.dtype, torch.float32))
    rows = torch.nn.functional.pad(total.flip(1), (0, l))
    return rows.as_strided((l, 2 * l - 1), (2 * l - 1, 1)).sum(0)
