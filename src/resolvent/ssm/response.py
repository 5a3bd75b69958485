"""The impulse response of a diagonal layer from its parameters: on a GPU one kernel for forward, one for backward.

The reference is `ssm.impulse` of the layer's bank in float64, some hundred operations. The kernels round to float32,
sufficient for a convolution in half precision; callers that need more use the reference.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.modes import Modes, Source
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast
from resolvent.ssm.impulse import impulse

CLOSE = 1e-4


def serves(source: Source) -> bool:
    """Whether the kernels support this source."""
    like = source.parameters[0]
    if not like.is_cuda or like.dtype != torch.float32 or source.option not in source.modes.fused:
        return False
    chosen = choose(f"{source.modes.kind.value}_response", _candidates(source.modes), like.device, like.dtype)
    return is_untransformed() and chosen is not nothing


def make_response(source: Source, length: int) -> Tensor:
    """K (d, length) in float32, with D = 0; requires `serves(source)`."""
    K: Tensor = _Response.apply(source.modes, source.option, length, *source.parameters)
    return K


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, modes: Modes, option: str, length: int, *parameters: Tensor) -> Tensor:
        ctx.own = modes, option, length
        ctx.save_for_backward(*parameters)
        K: Tensor = _load().response(modes.kind, parameters, length)
        return K

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (modes, option, length), parameters, g = ctx.own, ctx.saved_tensors, gradients[0]
        if by_graph_only(g):
            run = lambda *own: (impulse(modes.bank(own, option), length).to(g.dtype),)  # noqa: E731
            return None, None, None, *gradients_by_graph(run, parameters, (g,), ctx.needs_input_grad[3:])
        return None, None, None, *_load().response_gradients(modes.kind, parameters, g)


def _load() -> Any:
    from resolvent.ops.modes import triton as modes_triton

    return modes_triton


def agrees(kernels: Any, modes: Modes, device: torch.device, length: int) -> bool:
    """Whether values and gradients agree with float64."""
    parameters = [p.to(device, torch.float32) for p in modes.example()]
    K = kernels.response(modes.kind, parameters, length)
    slopes = kernels.response_gradients(modes.kind, parameters, K)
    with torch.enable_grad():
        wide = [p.double().requires_grad_() for p in parameters]
        want = impulse(modes.bank(wide, modes.fused[0]), length)
        wanted = torch.autograd.grad(want, wide, K.double(), materialize_grads=True)
    pairs = (K, want), *zip(slopes, wanted, strict=True)
    return all(bool((got.double() - w).norm() <= CLOSE * w.norm()) for got, w in pairs)


@cache
def _candidates(modes: Modes) -> tuple[Candidate, ...]:
    return triton_or(nothing, _load, lambda kernels, device, dtype: agrees(kernels, modes, device, 150))
