"""y = W_out h + D u with h_t = lam h_{t-1} + W_in u_t over u (b, l, d), as one operation on a GPU.

lam (p, 2) are p complex numbers in real pairs; W_in (2p, d) and W_out (d, 2p) real (`layers.mimo`). Its gradient is the
same scan run backwards between the transposed products:

    γ_t = ‾lam γ_{t+1} + W_out' ∂y_t,    ∂u = W_in' γ + D ∂y,    ∂lam = sum γ_t ‾h_{t-1}

Products run in bfloat16 where autocast to it is on around the layer; states are float32 always. `run_by_torch` is the
truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.pairs import pair_scan
from resolvent.ops.product import multiply
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
from resolvent.runtime.transforms import (
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
)

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def serves(x: Tensor, h0: Tensor | None) -> bool:
    """Whether the kernels take this pass."""
    if not (x.is_cuda and x.dtype == torch.float32 and x.numel() and is_untransformed()) or is_traced(x, h0):
        return False
    return choose("mimo_scan", CANDIDATES, x.device, x.dtype) is not nothing


def mimo_scan(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """y (b, l, d) and the state (b, 2p) at each sequence's end; `tables` are lam, W_in, W_out and D, h0 (b, 2p)."""
    y, end = _MimoScan.apply(dtype, lengths, x, None if h0 is None else h0.contiguous(), *tables)
    return y, end


def run_by_torch(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same in torch's operations, differentiable to every order."""
    lam, W_in, W_out, D = tables
    h = pair_scan(lam, torch.nn.functional.linear(x, W_in), h0)  # (b, l, 2p)
    return torch.addcmul(torch.nn.functional.linear(h, W_out), x, D), _pick(h, lengths)


def _pick(h: Tensor, lengths: Tensor | None) -> Tensor:
    """The states (b, 2p) after each sequence's last step, of h (b, l, 2p)."""
    if lengths is None:
        return h[:, -1].clone()
    return h[torch.arange(h.shape[0], device=h.device), lengths.to(h.device) - 1]


class _MimoScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, lengths: Tensor | None, x: Tensor, h0: Tensor | None, *tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        lam, W_in, W_out, D = tables
        own, into, out = (t.to(dtype) for t in (x.reshape(-1, x.shape[-1]), W_in, W_out))
        h = _load().scan(lam, multiply(own, into.mT).view(*x.shape[:2], -1), h0)
        y = torch.addcmul(multiply(h.view(-1, h.shape[-1]).to(dtype), out.mT).view(x.shape), x, D)
        ctx.save_for_backward(x, h0, lengths, h, *tables)
        ctx.dtype = dtype
        ctx.set_materialize_grads(False)
        return y, _pick(h, lengths)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        x, h0, lengths, h, *tables = ctx.saved_tensors
        gy = torch.zeros_like(x) if gradients[0] is None else gradients[0]
        if by_graph_only(*gradients):
            run = lambda x, h0, *own: run_by_torch(own, x, h0, lengths)  # noqa: E731
            return None, None, *gradients_by_graph(run, (x, h0, *tables), gradients, ctx.needs_input_grad[2:])
        return None, None, *_gradients(ctx, (x, h0, lengths, h), tables, gy.contiguous(), gradients[1])


def _gradients(
    ctx: Any, saved: tuple[Any, ...], tables: list[Tensor], gy: Tensor, g_end: Tensor | None
) -> list[Tensor | None]:
    x, h0, lengths, h = saved
    lam, W_in, W_out, D = tables
    needs, dtype, d = ctx.needs_input_grad, ctx.dtype, x.shape[-1]
    learn = any(needs[4:7])
    rows, into, out = (t.to(dtype) for t in (gy.view(-1, d), W_in, W_out))
    gh = multiply(rows, out).view(h.shape)
    if g_end is not None:
        last = torch.full((x.shape[0],), x.shape[1], device=x.device) if lengths is None else lengths.to(x.device)
        gh[torch.arange(x.shape[0], device=x.device), last - 1] += g_end
    gamma, g_lam = _load().adjoint(lam, gh, h if learn else None, h0)
    half = gamma.view(-1, gamma.shape[-1]).to(dtype)
    gx = torch.addcmul(multiply(half, into).view(x.shape), gy, D) if needs[2] else None
    g_h0 = _turn_back(lam, gamma[:, 0]) if needs[3] else None
    if not learn:
        return [gx, g_h0, None, None, None, (gy * x).sum((0, 1)) if needs[7] else None]
    g_in = multiply(half.mT, x.reshape(-1, d).to(dtype))
    g_out = multiply(rows.mT, h.view(-1, h.shape[-1]).to(dtype))
    return [gx, g_h0, g_lam, g_in, g_out, (gy * x).sum((0, 1)) if needs[7] else None]


def _turn_back(lam: Tensor, gamma: Tensor) -> Tensor:
    """‾lam γ of pairs (b, 2p)."""
    pairs = torch.view_as_complex(gamma.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(torch.view_as_complex(lam.contiguous()).conj() * pairs).flatten(-2)


# -- where the kernels run ---------------------------------------------------------------------------------------------


def _load() -> Any:
    from resolvent.ops.mimo_scan import triton as mimo_triton

    return mimo_triton


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Values, gradients and the multipliers' slopes of a scan over more than one stretch."""
    p, l = 3, 200
    angle = torch.arange(1, p + 1, device=device, dtype=torch.float64)
    lam = torch.view_as_real(torch.polar(1 - 0.1 * angle, angle))
    v = torch.sin(torch.arange(2 * l * 2 * p, device=device, dtype=torch.float64) ** 1.5).view(2, l, 2 * p)
    with torch.enable_grad():
        own = [t.requires_grad_() for t in (lam, v, v[:, 1].clone().detach())]
        h = pair_scan(own[0], own[1], own[2])
        want = torch.autograd.grad(h, own, v.detach())
    narrow = [t.detach().float() for t in (lam, v, own[2])]
    found = kernels.scan(*narrow)
    gamma, slope = kernels.adjoint(narrow[0], narrow[1], found, narrow[2])
    pairs = (found, h), (gamma, want[1]), (slope, want[0])
    return all(bool((g.double() - w).norm() <= CLOSE[torch.float32] * w.norm()) for g, w in pairs)


CANDIDATES: tuple[Candidate, ...] = triton_or(nothing, _load, _probe)
