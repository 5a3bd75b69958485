"""p complex recurrences h_t = lam h_{t-1} + v_t whose multipliers do not depend on time, in pairs of rows.

v and h are real (2p, b, l): rows 2j and 2j + 1 are the real and imaginary parts of recurrence j, time last, so that a
product with a (2p, d) matrix drives them and one with a (d, 2p) matrix reads them, without a transpose. The multipliers
are not expanded over time, which halves the reads of a general scan. The gradient is the same scan run backwards:

    γ_t = ‾lam γ_{t+1} + ∂h_t,    ∂v = γ,    ∂lam = sum over sequences and steps of γ_t ‾h_{t-1}
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import gradients_by_graph, outside_autocast


def constant_scan(lam: Tensor, v: Tensor) -> Tensor:
    """h (2p, b, l) in the dtype of v, for lam (p, 2) as real pairs; half types accumulate in float32."""
    if _triton(v) is None:
        return constant_reference(lam, v)
    h: Tensor = attempt("constant_scan", lambda: _ConstantScan.apply(lam, v), lambda: constant_reference(lam, v))
    return h


def constant_reference(lam: Tensor, v: Tensor) -> Tensor:
    """The same by `linear_scan` over complex numbers: any device, every order of derivative."""
    pairs = v.unflatten(0, (-1, 2)).movedim(1, -1).to(lam.dtype).contiguous()  # (p, b, l, 2)
    a = torch.view_as_complex(lam.contiguous())[:, None, None, None]
    h = linear_scan(a, torch.view_as_complex(pairs)[..., None])[..., 0]  # (p, b, l)
    return torch.view_as_real(h).movedim(-1, 1).flatten(0, 1).to(v.dtype)


def _triton(v: Tensor) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    return kernels("linear_scan", "constant", v, op="the scan with constant multipliers")


class _ConstantScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lam: Tensor, v: Tensor) -> Tensor:
        h: Tensor = _triton(v).scan(lam, v)
        ctx.learn = ctx.needs_input_grad[0]
        ctx.save_for_backward(lam, v, h if ctx.learn else None)
        return h

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        lam, v, h = ctx.saved_tensors
        g = gradients[0]

        def by_graph() -> tuple[Tensor | None, ...]:
            return gradients_by_graph(lambda *t: (constant_reference(*t),), (lam, v), (g,), ctx.needs_input_grad)

        if torch.is_grad_enabled():
            found = by_graph()
        else:
            found = attempt("constant_scan_backward", lambda: _triton(v).adjoint(lam, g, h)[::-1], by_graph)
        return found[0], found[1]
