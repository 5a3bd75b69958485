"""The scan h_t = lam h_{t-1} + v_t of complex numbers in pairs, with lam constant in time; inputs and outputs are real.

v and h are (..., l, 2p), real and imaginary parts interleaved, lam (p, 2). In a traced pass it is one opaque node,
`resolvent::pair_scan`. Its gradient is the same scan run backwards (see `operation`), for every order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.library import fresh, register
from resolvent.ops.linear_scan import operation
from resolvent.ops.linear_scan.adjoint import previous
from resolvent.ops.pairs import reals
from resolvent.runtime.transforms import is_traced


def pair_scan(lam: Tensor, v: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """All states h (..., l, 2p), for h0 (..., 2p)."""
    if not is_traced(v):
        return reals(operation.linear_scan(_join(lam), *_all(v, h0), reverse))
    if plain.is_chosen():
        return plain.pair_scan(lam, v, h0, reverse)
    h: Tensor = _scan(lam, v, h0, reverse)
    return h


def _all(v: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Reals (..., 2p) as complex numbers (..., p)."""
    return _numbers(v), None if h0 is None else _numbers(h0)


def _numbers(v: Tensor) -> Tensor:
    return _join(v.unflatten(-1, (-1, 2)))


def _join(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


@torch.library.custom_op("resolvent::pair_scan", mutates_args=())
def _scan(lam: Tensor, v: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    numbers, start = _all(v, h0)
    a = _join(lam).reshape((1,) * (v.dim() - 1) + (-1,))
    return reals(operation.forward_states(a, numbers, start, reverse)).contiguous()


@torch.library.custom_op("resolvent::pair_scan_backward", mutates_args=())
def _scan_backward(g: Tensor, lam: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    a = _join(lam).reshape((1,) * (h.dim() - 1) + (-1,))
    states, start = _all(h, h0)
    ga, gv = operation.backward_states(_numbers(g), a, states, start, reverse)
    return torch.view_as_real(ga.resolve_conj()).reshape(lam.shape).contiguous(), reals(gv).contiguous()


_scan.register_fake(lambda lam, v, *rest: fresh(v))
_scan_backward.register_fake(lambda g, lam, h, *rest: fresh(lam, h))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    lam, _, h0, ctx.reverse = inputs
    ctx.save_for_backward(lam, output, h0)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    lam, h, h0 = ctx.saved_tensors
    if torch.is_grad_enabled():
        gv = _scan(_conjugate(lam), g, None, not ctx.reverse)
        products = plain.times(_conjugate(previous(h, h0, ctx.reverse).unflatten(-1, (-1, 2))), gv, True)
        g_lam = products.unflatten(-1, (-1, 2)).flatten(0, -3).sum(0)
    else:
        g_lam, gv = _scan_backward(g.contiguous(), lam, h, h0, ctx.reverse)
    last = gv[..., -1, :] if ctx.reverse else gv[..., 0, :]
    return g_lam, gv, None if h0 is None else plain.times(_conjugate(lam), last, True), None


def _conjugate(pairs: Tensor) -> Tensor:
    return torch.stack([pairs[..., 0], -pairs[..., 1]], -1)


register(_scan, _scan_backward, _gradients, _save)
