"""Softmax attention to both sides under a relative bias, with channels first: q, k (z, b, l), v, o (w, b, l).

    o_i = sum_j p_ij v_j,    p = softmax over j of q_i·k_j + line_{i - j}                    q comes scaled

Scores are plain batched products whose operands and results are views of the channels-first arrays, and the softmax
under its bias is one pass over them in place. With l = 1024 a flash kernel would save little: what it does not write it
has to compute again backwards. The line (2l - 1) holds the bias by distance, -(l - 1) first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast


def bias_line(table: Tensor, length: int) -> Tensor:
    """The line for `length` steps of a table (2 size - 1,) whose last entries stand for all that is farther."""
    size = (table.shape[0] + 1) // 2
    if length <= size:
        return table[size - length : size - 1 + length]
    more = length - size
    return torch.cat([table[:1].expand(more), table, table[-1:].expand(more)])


def column_attention(q: Tensor, k: Tensor, v: Tensor, line: Tensor) -> Tensor:
    """o (w, b, l)."""
    if _triton(q) is None:
        return plain_column_attention(q, k, v, line)
    args = (q, k, v, line)
    return attempt("column_attention", lambda: _Attention.apply(*args), lambda: plain_column_attention(*args))


def plain_column_attention(q: Tensor, k: Tensor, v: Tensor, line: Tensor) -> Tensor:
    """The same in torch's operations."""
    l = q.shape[2]
    at = torch.arange(l, device=q.device)
    scores = torch.einsum("zbi,zbj->bij", q, k) + line.to(q.dtype)[at[:, None] - at + l - 1]
    return torch.einsum("bij,wbj->wbi", torch.softmax(scores, -1), v)


def _triton(q: Tensor) -> Any:
    """The GPU's kernels, or None where they do not serve."""
    return kernels("attention", "column_attention", q)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, line: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        p = torch.bmm(_steps(q), _channels(k))  # (b, i, j)
        _triton(q).softmax_(p, line.detach())
        o = torch.empty_like(v)
        torch.bmm(_channels(v), p.mT, out=_channels(o))
        ctx.save_for_backward(q, k, v, line, p)
        return o

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, line, p = ctx.saved_tensors
        g = gradients[0]
        inputs, needs = (q, k, v, line), ctx.needs_input_grad

        def again() -> tuple[Tensor | None, ...]:
            return gradients_by_graph(lambda *t: (plain_column_attention(*t),), inputs, (g,), needs)

        if by_graph_only(g):
            return again()
        return attempt("column_attention_backward", lambda: _gradients(inputs, p, g.contiguous(), needs[3]), again)


def _gradients(inputs: tuple[Tensor, ...], p: Tensor, g: Tensor, learn: bool) -> tuple[Tensor | None, ...]:
    q, k, v, line = inputs
    gs = torch.bmm(_steps(g), _channels(v))  # ∂p (b, i, j)
    _triton(q).slope_(gs, p)  # ∂scores
    gq, gk, gv = (torch.empty_like(t) for t in (q, k, v))
    torch.bmm(_channels(g), p, out=_channels(gv))
    torch.bmm(_channels(k), gs.mT, out=_channels(gq))
    torch.bmm(_channels(q), gs, out=_channels(gk))
    return gq, gk, gv, _along_diagonals(gs).to(line.dtype) if learn else None


def _steps(x: Tensor) -> Tensor:
    """(c, b, l) as (b, l, c)."""
    return x.permute(1, 2, 0)


def _channels(x: Tensor) -> Tensor:
    """(c, b, l) as (b, c, l)."""
    return x.permute(1, 0, 2)


def _along_diagonals(g: Tensor) -> Tensor:
    """Sums of g (b, l, l) over the batch and where i - j is the same: (2l - 1,), from -(l - 1) on.

    With the columns turned around a diagonal runs against the rows: in rows of 2l it is a column of stride 2l - 1.
    """
    l = g.shape[1]
    total = g.sum(0, dtype=torch.promote_types(g.dtype, torch.float32))
    rows = torch.nn.functional.pad(total.flip(1), (0, l))
    return rows.as_strided((l, 2 * l - 1), (2 * l - 1, 1)).sum(0)
