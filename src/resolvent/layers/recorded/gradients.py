"""The backward pass of a recorded pass: by its CUDA graph, or by recomputation where the graph does not apply."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.layers.recorded.known import Kind
from resolvent.layers.recorded.recording import Lease, Recording
from resolvent.ops.step import recorded
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph

SECOND = (
    "Trying to backward through the graph a second time: what a recorded pass kept for its way back is gone. Specify "
    "retain_graph=True if you need it again."
)
MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a parameter of "
    "{}, of shape {}, since its pass. Call backward() before the optimiser's step, or run the pass again."
)


class Pass(torch.autograd.Function):
    """(x, parameters) -> y and the tensors of the last state, by replaying a recording.

    x is saved only for second derivatives: the first backward pass uses the recording's copy, so callers may modify x.
    """

    @staticmethod
    def forward(
        ctx: Any, kind: Kind, own: Recording, lease: Lease, lengths: Any, x: Tensor, *parameters: Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.own, ctx.lease, ctx.parameters = kind, own, lease, parameters
        ctx.versions = [p._version for p in parameters]
        ctx.precision = x.device.type, torch.get_autocast_dtype(x.device.type), torch.is_autocast_enabled(x.device.type)
        ctx.save_for_backward(x if x.requires_grad else None)
        outputs = own.run(x, lengths)
        alike = zip(outputs, own.outputs, strict=True)
        ctx.mark_non_differentiable(*(t for t, made in alike if not made.requires_grad))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> tuple[Any, ...]:
        own: Recording | None = ctx.own
        if own is None:
            raise RuntimeError(SECOND)
        for p, version in zip(ctx.parameters, ctx.versions, strict=True):
            if p._version != version:
                raise RuntimeError(MODIFIED.format(type(own.module).__name__, tuple(p.shape)))
        if by_graph_only(*g) or not own.reads(ctx.parameters):
            slopes = _run_again(ctx, own, g)
            ctx.kind.give_up()  # otherwise every step would compute the pass twice
        elif not own.answers(g):
            slopes = _run_again(ctx, own, g)
            ctx.kind.widen()
        else:
            slope, found = own.run_back(g)
            slopes = slope, *found
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            own.release()
            ctx.kind = ctx.own = ctx.lease = ctx.parameters = None
        return None, None, None, None, *slopes


def _run_again(ctx: Any, own: Recording, g: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The same gradients by recomputing the pass with autograd: of any order, and from the last state too."""
    needs = ctx.needs_input_grad[4:]
    asked = [i for i, t in enumerate(g) if t is not None]
    if not asked:
        return (None,) * len(needs)
    names = [name for name, _ in own.module.named_parameters()]
    lengths = None if own.lengths is None else own.lengths.clone()

    def again(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        given, outputs = dict(zip(names, parameters, strict=True)), list[Tensor]()
        with torch.autocast(*ctx.precision):
            found = torch.func.functional_call(own.module, given, (x, None, lengths))
        recorded.flatten(found, outputs)
        return tuple(t for i, t in enumerate(t for t in outputs if t is not None) if i in asked)

    if torch.is_grad_enabled() and needs[0]:
        (x,) = ctx.saved_tensors
    else:
        x = own.x.to(own.dtype, copy=True).requires_grad_(needs[0])
    inputs = [x, *ctx.parameters]
    if not torch.is_grad_enabled():  # needs are those of the forward pass, not the current flags
        inputs = [x, *(p.detach().requires_grad_(need) for p, need in zip(ctx.parameters, needs[1:], strict=True))]
    recorded._recording.append(True)
    try:
        return gradients_by_graph(again, inputs, [t for t in g if t is not None], needs)
    finally:
        recorded._recording.pop()
