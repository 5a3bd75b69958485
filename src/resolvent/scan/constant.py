"""p complex recurrences h_t = lam h_{t-1} + v_t whose multipliers do not depend on time, in pairs of rows.

v and h are real (2p, b, l): rows 2j and 2j + 1 hold the real and imaginary parts of recurrence j, time last, so that a
product with a (2p, d) matrix drives them and one with a (d, 2p) matrix reads them, without a transpose. The multipliers
are not spread over time, which halves what a general scan reads. The gradient is the same scan run backwards:

    γ_t = ‾lam γ_{t+1} + ∂h_t,    ∂v = γ,    ∂lam = sum over sequences and steps of γ_t ‾h_{t-1}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.scan.linear import linear_scan

QUICK = (torch.bfloat16, torch.float32)


def constant_scan(lam: Tensor, v: Tensor) -> Tensor:
    """h (2p, b, l) in the dtype of v, for lam (p, 2) as real pairs; half types accumulate in float32."""
    if _triton(v) is None:
        return constant_reference(lam, v)
    h: Tensor = _tried("constant_scan", lambda: _ConstantScan.apply(lam, v), lambda: constant_reference(lam, v))
    return h


def constant_reference(lam: Tensor, v: Tensor) -> Tensor:
    """The same by `linear_scan` over complex numbers: any device, every order of derivative."""
    pairs = v.unflatten(0, (-1, 2)).movedim(1, -1).to(lam.dtype).contiguous()  # (p, b, l, 2)
    a = torch.view_as_complex(lam.contiguous())[:, None, None, None]
    h = linear_scan(a, torch.view_as_complex(pairs)[..., None])[..., 0]  # (p, b, l)
    return torch.view_as_real(h).movedim(-1, 1).flatten(0, 1).to(v.dtype)


def _triton(v: Tensor) -> Any:
    """The GPU's kernels, or None where they do not serve."""
    if not v.is_cuda or v.dtype not in QUICK:
        return None
    try:
        from resolvent.scan import constant_triton
    except ImportError:
        return None
    return constant_triton


class _ConstantScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lam: Tensor, v: Tensor) -> Tensor:
        h: Tensor = _triton(v).scan(lam, v)
        ctx.learn = ctx.needs_input_grad[0]
        ctx.save_for_backward(lam, v, h if ctx.learn else None)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        lam, v, h = ctx.saved_tensors
        g, needs = gradients[0], ctx.needs_input_grad
        if torch.is_grad_enabled():
            return _again(lam, v, g, needs)
        found = _tried(
            "constant_scan_backward", lambda: _triton(v).adjoint(lam, g, h)[::-1], lambda: _again(lam, v, g, needs)
        )
        return found[0], found[1]


def _tried(name: str, run: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`run`, or `other` where Triton cannot compile or launch it here."""
    from resolvent.scan.linear_triton import tried

    return tried(name, run, other)


def _again(lam: Tensor, v: Tensor, g: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by the reference; where they are to be differentiated in turn, as a graph."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() if not graph else t.view_as(t) for t in (lam, v)]
        wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
        h = constant_reference(*inputs)
    found = iter(torch.autograd.grad(h, wanted, g, create_graph=graph))
    glam, gv = (next(found) if need else None for need in needs)
    return glam, gv
