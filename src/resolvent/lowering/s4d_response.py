"""The impulse response of an S4D layer straight from its parameters, K_0 + D, K_1, ..., in float64, on a CPU.

`ssm.impulse` makes it from a bank by some three hundred short operations, and as many for its gradients: more than the
numbers cost. Where numba is installed one call makes all of it (`s4d_response_numba`), and one its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.layers.s4d import S4D
from resolvent.ops.blocked.tables import largest
from resolvent.runtime.dispatch import choose, nothing, numba_or
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast
from resolvent.ssm.impulse import impulse

NAMES = "log_dt", "log_decay", "frequency", "B", "C", "D"
Again = Callable[..., Tensor]


def response(layer: S4D, length: int, again: Again) -> Tensor | None:
    """K (d, length), or None where nothing is compiled for it; `again` makes it of the parameters NAMES."""
    own = [layer._parameters.get(name) for name in NAMES]
    if layer.frequency is None or any(p is None for p in own[:-1]) or not is_untransformed():
        return None
    kernels = choose("s4d_response", _CANDIDATES, layer.anchor.device, layer.dtype)
    if kernels is nothing:
        return None
    found: Tensor = _Response.apply(kernels, (layer.discretisation == "bilinear", length, again), *own)
    return found


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, how: tuple[bool, int, Again], *own: Tensor | None) -> Tensor:
        bilinear, length, ctx.again = how
        log_dt, log_decay, frequency, B, C, D = own
        assert log_decay is not None
        assert log_dt is not None
        d, n = log_decay.shape
        flat = [t.reshape(-1) for t in (log_decay, frequency, B, C) if t is not None]
        p = torch.cat([log_dt, torch.zeros_like(log_dt) if D is None else D, *flat]).double()
        ctx.kernels, ctx.how = kernels, (bilinear, largest(log_dt.dtype))
        K: Tensor
        K, kept = kernels.response(p, (d, n, length), *ctx.how)
        ctx.save_for_backward(p, kept, *(t for t in own if t is not None))
        return K

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        p, kept, *own = ctx.saved_tensors
        g, needed = gradients[0], ctx.needs_input_grad[2 : 2 + len(own)]
        missing = [None] * (len(NAMES) - len(own))  # D
        if by_graph_only(g):
            found = gradients_by_graph(lambda *t: (ctx.again(*t),), own, (g,), needed)
            return None, None, *found, *missing
        (d, n), whole = own[1].shape, ctx.kernels.gradient(p, _copy(g), kept, *ctx.how)
        log_dt, D, *rest = whole.to(own[0].dtype).split([d, d, d * n, d * n, 2 * d * n, 2 * d * n])
        made = [log_dt, *(t.view_as(o) for t, o in zip(rest, own[1:], strict=False)), *([] if missing else [D])]
        return None, None, *made, *missing


def _copy(g: Tensor) -> Tensor:
    return g.clone(memory_format=torch.contiguous_format)


def _load() -> Any:
    from resolvent.lowering import s4d_response_numba

    return s4d_response_numba


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """A layer of two channels, values and gradients, against the bank's response."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = S4D(2, 4, dt_min=0.1, dt_max=0.9).to(dtype)
    own, g = [getattr(layer, name) for name in NAMES], torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]]).double()
    found = []
    with torch.enable_grad():
        for K in (_Response.apply(kernels, (False, 3, None), *own), impulse(layer._bank(), 3)):
            found.append([K, *torch.autograd.grad(K, own, g)])
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*found, strict=True))


_CANDIDATES = numba_or(nothing, _load, _probe)
