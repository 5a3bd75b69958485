"""The impulse response of S4 and the matrices linking blocks of steps, in one or two kernels on a GPU.

The reference is `ssm.impulse` and `links` of the layer's bank in float64, some hundred operations. The kernels also
compute in float64 and round once, so every pass in float32 or half precision may use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked import links
from resolvent.ops.dplr_bank import kernels_of, load
from resolvent.ops.modes import DenseSource
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast
from resolvent.ssm.impulse import impulse


def serves(source: Any) -> bool:
    """Whether the kernels support this source."""
    return kernels_of(source) is not None


def make_response(sources: Sequence[DenseSource], length: int) -> list[Tensor]:
    """K (d, length) in float32 of each source, with D = 0; all in one kernel."""
    return [K for (K,) in _make(sources, length, False)]


def make_links(sources: Sequence[DenseSource], T: int) -> list[tuple[Tensor, ...]]:
    """The first T steps of K, M_in, M_out and A^T of each source, in float32."""
    return _make(sources, T, True)


def _make(sources: Sequence[DenseSource], T: int, linked: bool) -> list[tuple[Tensor, ...]]:
    """The channels of all sources, which have the same shape, as one bank."""
    first = sources[0]
    joined = [
        torch.cat(each) if len(each) > 1 else each[0] for each in zip(*(s.parameters for s in sources), strict=True)
    ]
    made = _Made.apply(first.make, first.option, T, linked, *joined)
    return list(zip(*(t.chunk(len(sources)) for t in made), strict=True))


def run_by_torch(make: Any, option: str, T: int, linked: bool, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same in torch operations, rounded to float32 at the end."""
    bank, dtype = make(parameters, option), parameters[0].dtype
    return impulse(bank, T).to(dtype), *(links(bank, T, dtype) if linked else ())


class _Made(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, make: Any, option: str, T: int, linked: bool, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.own = make, option, T, linked
        made: tuple[Tensor, ...]
        if linked:
            made, kept = load().make_links(parameters, T), ()
        else:
            K, kept = load().response(parameters, T)
            made = (K,)
        ctx.save_for_backward(*(kept if any(ctx.needs_input_grad) else ()), *parameters)
        ctx.kept = len(kept)
        return made

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        make, option, T, linked = ctx.own
        kept, parameters = ctx.saved_tensors[: ctx.kept], ctx.saved_tensors[ctx.kept :]
        if by_graph_only(*gradients):
            run = lambda *given: run_by_torch(make, option, T, linked, given)  # noqa: E731
            return *(None,) * 4, *gradients_by_graph(run, parameters, gradients, ctx.needs_input_grad[4:])
        kernels = load()
        if linked:
            return *(None,) * 4, *kernels.link_gradients(parameters, gradients)
        return *(None,) * 4, *kernels.response_gradients(parameters, gradients[0], kept)
