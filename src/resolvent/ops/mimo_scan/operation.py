"""y = W_out h + D u with h_t = lam h_{t-1} + W_in u_t over u (b, l, d), as one operation on a GPU.

lam (p, 2) are p complex numbers in real pairs; W_in (2p, d) and W_out (d, 2p) real (`layers.mimo`), D (d,). Its
gradient is the same scan run backwards between the transposed products:

    γ_t = ‾lam γ_{t+1} + W_out' ∂y_t,    ∂u = W_in' γ + D ∂y,    ∂lam = sum γ_t ‾h_{t-1}

With a matrix D (d, d) the read-out is delayed, y_t = W_out h_{t-1} + D u_t (`layers.l2ru`). States and inputs are then
concatenated in rows, (h_{t-1}, u_t), for one product with (W_out, D); gradients likewise.

If autocast to bfloat16 is on around the layer, products and intermediate values are in bfloat16; the recurrence
always accumulates in float32. `run_by_torch` is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from resolvent.ops.linear_scan.pairs import pair_scan
from resolvent.ops.product import multiply
from resolvent.runtime.dispatch import Candidate, choose, lazily, nothing, triton_or
from resolvent.runtime.transforms import (
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
)

CLOSE = 1e-4


def serves(x: Tensor, h0: Tensor | None) -> bool:
    """Whether the kernels support this pass."""
    if not (x.is_cuda and x.dtype == torch.float32 and x.numel() and is_untransformed()) or is_traced(x, h0):
        return False
    return choose("mimo_scan", CANDIDATES, x.device, x.dtype) is not nothing


def mimo_scan(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """y (b, l, d) and the state (b, 2p) at each sequence's end; `tables` are lam, W_in, W_out and D, h0 (b, 2p)."""
    y, end = _MimoScan.apply(dtype, lengths, x, h0, *tables)
    return y, end


def run_by_torch(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, differentiable to every order."""
    lam, W_in, W_out, D = tables
    h = pair_scan(lam, linear(x, W_in), h0)  # (b, l, 2p)
    end = h[:, -1].clone() if lengths is None else h[torch.arange(len(h), device=h.device), lengths.to(h.device) - 1]
    if D.dim() == 1:
        return torch.addcmul(linear(h, W_out), x, D), end
    before = torch.cat([(torch.zeros_like(h[:, 0]) if h0 is None else h0)[:, None], h[:, :-1]], 1)
    return linear(before, W_out) + linear(x, D), end


class _MimoScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, lengths: Tensor | None, x: Tensor, h0: Tensor | None, *tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        (lam, W_in, W_out, D), u = tables, x.contiguous()
        lengths, both, (d, s) = None if lengths is None else lengths.to(x.device), D.dim() == 2, W_out.shape
        held, _ = _hold(u, dtype, s if both else 0)
        own = held[:, s : s + d] if both else held  # (b l, d)
        v = _steps(multiply(own, W_in.to(dtype).mT), x)  # rounding it would change ∂lam by a few per cent
        h, end = _load().scan(lam, v, h0, lengths, _steps(held, x) if both else dtype)
        h = h.view(len(own), -1)
        if both:
            y = multiply(held, _beside(W_out, D, 1, dtype).mT)
        else:
            y = _rows().add_skip(h @ W_out.to(dtype).mT, u.view(own.shape), D)
        ctx.save_for_backward(x, h0, lengths, own, h, *tables)
        ctx.dtype = dtype
        ctx.set_materialize_grads(False)
        return y.view(x.shape), end

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        x, h0, lengths, own, h, *tables = ctx.saved_tensors
        gy = torch.zeros_like(x) if gradients[0] is None else gradients[0]
        if by_graph_only(*gradients):
            run = lambda x, h0, *own: run_by_torch(own, x, h0, lengths)  # noqa: E731
            return None, None, *gradients_by_graph(run, (x, h0, *tables), gradients, ctx.needs_input_grad[2:])
        return None, None, *_gradients(ctx, (x, h0, lengths, own, h), tables, gy.contiguous(), gradients[1])


def _gradients(
    ctx: Any, saved: tuple[Any, ...], tables: list[Tensor], gy: Tensor, g_end: Tensor | None
) -> list[Tensor | None]:
    x, h0, lengths, own, h = saved
    lam, W_in, W_out, D = tables
    needs, dtype, both, (d, s) = ctx.needs_input_grad, ctx.dtype, D.dim() == 2, W_out.shape
    learn = any(needs[4:8]) if both else any(needs[4:7])
    held, g_D = _hold(gy, dtype, s if both else 0, own if needs[7] and not both else None)
    rows = held[:, s : s + d] if both else held
    gh = _steps(multiply(rows, W_out.to(dtype)), x)
    states, out = (_steps(h, x) if learn else None, h0), _steps(held, x) if both else dtype
    gamma, first, g_lam = _load().adjoint(lam, gh, (g_end, lengths), states, out)
    gamma = gamma.view(len(own), -1)
    gx = g_h0 = None
    if needs[2] and both:
        gx = multiply(held, _beside(W_in, D, 0, dtype)).view(x.shape)
    elif needs[2]:
        gx = _rows().add_skip(gamma @ W_in.to(dtype), gy.view(own.shape), D).view(x.shape)
    if needs[3]:
        g_h0 = _turn_back(lam, first) + (gy[:, 0] @ W_out if both else 0)
    if not learn:
        return [gx, g_h0, None, None, None, g_D]
    g_out = multiply(rows.mT, h)  # and of a matrix D, if any
    return [gx, g_h0, g_lam, multiply(gamma[:, :s].mT, own), g_out[:, :s], g_out[:, s : s + d] if both else g_D]


def _hold(x: Tensor, dtype: torch.dtype, first: int, other: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Rows (b l, w) in dtype with x in the columns from `first` on; the sum over rows of x times `other`, if any."""
    rows, d = x.view(-1, x.shape[-1]), x.shape[-1]
    if not first and x.dtype == dtype:
        return rows, None if other is None else _rows().copy_rows(rows, None, 0, other)
    wide = first + d + (d % 2 if first else 0)  # rows with states have whole words
    held = torch.empty((len(rows), wide), dtype=dtype, device=x.device)
    return held, _rows().copy_rows(rows, held, first, other)


def _beside(W: Tensor, D: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    """W and D concatenated, with zeros for a padding column of `_hold`."""
    return torch.cat([W, D, torch.zeros_like(D).narrow(axis, 0, len(D) % 2)], axis).to(dtype)


def _steps(rows: Tensor, x: Tensor) -> Tensor:
    return rows.view(*x.shape[:2], -1)


def _turn_back(lam: Tensor, gamma: Tensor) -> Tensor:
    """‾lam γ of pairs (b, 2p)."""
    pairs = torch.view_as_complex(gamma.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(torch.view_as_complex(lam.contiguous()).conj() * pairs).flatten(-2)


# -- where the kernels run ---------------------------------------------------------------------------------------------


_load, _rows = lazily("ops.mimo_scan.triton"), lazily("ops.mimo_scan.rows_triton")


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Values and all gradients of a pass over more than one stretch."""
    p, l, d = 3, 140, 2
    angle = torch.arange(1, p + 1, device=device, dtype=torch.float64)
    shapes = (2, l, d), (2, 2 * p), (2 * p, d), (d, 2 * p), (d,)
    x, h0, *rest = (torch.sin(torch.arange(prod(s), device=device).double() ** 1.5).view(s) for s in shapes)
    given = [x, h0, torch.view_as_real(torch.polar(1 - 0.1 * angle, angle)), *rest]

    def all_of(run: Any, dtype: torch.dtype) -> list[Tensor]:
        with torch.enable_grad():
            own = [t.detach().to(dtype).requires_grad_() for t in given]
            made = run(*own)
            return [*made, *torch.autograd.grad(made, own, [t.detach().cos() for t in made])]

    found = all_of(lambda *own: _MimoScan.apply(dtype, None, *own), dtype)
    want = all_of(lambda x, h0, *own: run_by_torch(own, x, h0, None), torch.float64)
    pairs = zip(found, want, strict=True)
    return all(bool((g.double() - w).norm() <= CLOSE * w.norm()) for g, w in pairs)


CANDIDATES: tuple[Candidate, ...] = triton_or(nothing, _load, _probe)
