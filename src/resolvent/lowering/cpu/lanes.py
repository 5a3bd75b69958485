"""A whole stack of residual blocks on a CPU, eight samples at a time: what attacks and training run.

    entry -> norm -> [ x + mixer(ads(f(norm(x)))) ] or [ norm(x + mixer(ads(f(x)))) ] -> norm -> pool

x (b, l, c) -> features (b, d); f is the block's layer, a convolution with k (d, l) or a `Recurrence`. The parameters
are laid out once (`plan`), after which a pass is one call in each direction (`lanes_numba`), with gradients in x alone
or in the parameters too. Gradients of gradients run the way that the caller names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.mixer import Mixer
from resolvent.blocks.residual import Residual
from resolvent.layers.s4d import S4D
from resolvent.lowering import columns
from resolvent.lowering.cpu.lanes_layout import PAD, WIDTH, Plan, Source
from resolvent.lowering.cpu.lanes_pack import Parts, lay_out
from resolvent.lowering.describe import describe
from resolvent.lowering.program import Linear, Skip, settle
from resolvent.lowering.recurrence import Recurrence
from resolvent.runtime.dispatch import choose, nothing, numba_or
from resolvent.runtime.transforms import by_graph_only, outside_autocast

Again = Callable[[Tensor], Tensor]


def run_lanes(x: Tensor, plan: Plan, again: Again) -> Tensor:
    """Features (b, d) of x (b, l, c); `again` computes the same with torch's operations."""
    found: Tensor = _Walk.apply(x.to(plan.numbers.dtype), plan, again, *(s.tensor for s in plan.sources))
    return found


def plan(parts: Parts, dtype: torch.dtype, learnt: bool = False) -> Plan | None:
    """A stack that this `covers` as numbers, or None where no compiled walk runs here.

    With `learnt`, gradients flow into the parameters and the layers' numbers as well.
    """
    kernels = _kernels(parts.entry.read(parts.entry.module)[0].device, dtype)
    return None if kernels is None else lay_out(parts, dtype, learnt, kernels)


def runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a compiled walk runs here."""
    return _kernels(device, dtype) is not None


def covers(parts: Parts) -> bool:
    """Whether a walk says everything that these nodes do."""
    norms = (parts.start, parts.end, *(b.norm for b in parts.blocks))
    return all(columns.is_norm(n, ("layer",)) for n in norms) and all(b.around for b in parts.blocks)


# -- the pass ----------------------------------------------------------------------------------------------------------


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, again: Again, *tensors: Tensor) -> Tensor:
        if not any(ctx.needs_input_grad):
            found: Tensor = plan.kernels.forward(plan, x)
            return found
        out: Tensor
        out, ctx.room = plan.kernels.forward_kept(plan, x)
        ctx.save_for_backward(x, *tensors)
        ctx.plan, ctx.again = plan, again
        return out

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, *tensors), g, plan = ctx.saved_tensors, gradients[0], ctx.plan
        needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
        if by_graph_only(g):
            gx, *found = _by_graph(ctx.again, [x, *tensors], g, needed)
            return gx, None, None, *found
        learnt = any(needed[1:])
        gx, sheet = plan.kernels.backward(plan, g, ctx.room, x if learnt else None)
        if sheet is None:
            return gx, None, None, *([None] * len(tensors))
        found = [_gradient(s, sheet).to(s.tensor.dtype) for s in plan.sources]
        return gx, None, None, *found


def _gradient(source: Source, sheet: Tensor) -> Tensor:
    shape = source.tensor.shape
    if source.kind == "row":
        return sheet[source.place : source.place + WIDTH * shape[0]].view(-1, WIDTH).sum(1)
    if source.kind == "kernel":
        whole = shape[0] * (PAD + shape[1])
        return sheet[source.place : source.place + whole].view(shape[0], -1)[:, PAD:]
    return sheet[source.place : source.place + shape.numel()].view(shape)


def _by_graph(again: Again, inputs: list[Tensor], g: Tensor, needed: list[bool]) -> list[Tensor | None]:
    """The gradients of again(x), run once more, as a graph."""
    with torch.enable_grad():
        output = again(inputs[0])
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    graph = torch.is_grad_enabled()
    found = iter(torch.autograd.grad(output, wanted, g, create_graph=graph, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The compiled module, or None elsewhere, where numba is missing or refused, or another backend is forced."""
    real = device.type == "cpu" and dtype in (torch.float32, torch.float64)
    found = choose("lanes", _CANDIDATES, device, dtype) if real else nothing
    return None if found is nothing else found


def _load() -> Any:
    from resolvent.lowering.cpu import lanes_numba

    return lanes_numba


def tiny(dtype: torch.dtype, recurs: bool = False) -> tuple[Plan, Again]:
    """A block of three channels and two steps to try kernels on: its plan, and its features in torch's operations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        entry, block = nn.Linear(1, 3).to(dtype), Residual(S4D(3, 2), mixer=Mixer(3, "linear"), prenorm=False).to(dtype)
    k = torch.tensor([[0.5, 0.25], [1.0, -1.0], [0.0, 2.0]], dtype=dtype)
    turn = torch.tensor([[0.5, 0.25], [-0.25, 0.5]], dtype=dtype)  # by lam = 0.5 + 0.25 i, for rows (re, im)

    def features(x: Tensor) -> Tensor:
        first, second = entry(x).unbind(1)
        now, then, late = first * k[:, 0], second * k[:, 0], first * k[:, 1]
        if recurs:
            now, then, late = now + first @ k @ k.t(), then + second @ k @ k.t(), first @ k @ turn @ k.t()
        y = torch.stack([now, then + late], 1)
        found: Tensor = block.norm(entry(x) + block.mixer(y)).mean(1)
        return found

    layer = Recurrence(turn[0], k.t(), k, k[:, 0]) if recurs else k
    (enter,), (skip,) = (settle(describe(module).chain) for module in (entry, block))
    assert isinstance(enter, Linear)
    assert isinstance(skip, Skip)
    return lay_out(Parts(enter, (), [skip], [layer], (), "mean", 2), dtype, False, None), features


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """One block of two steps against torch's operations, values and gradient: a convolution, then a recurrence."""
    return all(_agrees(kernels, *tiny(dtype, recurs), dtype) for recurs in (False, True))


def _agrees(kernels: Any, plan: Plan, features: Again, dtype: torch.dtype) -> bool:
    x, g = torch.tensor([[[1.0], [2.0]]], dtype=dtype, requires_grad=True), torch.tensor([[0.5, 1.0, 0.0]], dtype=dtype)
    with torch.enable_grad():
        want = features(x)
        (slope,) = torch.autograd.grad(want, x, g)
    out, room = kernels.forward_kept(plan, x.detach())
    got = out, kernels.backward(plan, g, room)[0]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, (want, slope), strict=True))


_CANDIDATES = numba_or(nothing, _load, _probe)
