"""A bank of d diagonal systems over x (b, l, d), from a layer's parameters to its output, in few kernels on a GPU.

The same maths as `ops.blocked` in another layout (`bank_scan.triton`): a layer by itself is bound by the host, which
launches some fifty operations there and a dozen here. Products run in bfloat16 if autocast to it is on around the
layer, the carried states always in float32. `run_by_torch` is the reference: `ops.blocked` on float64 tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked.operation import Blocks
from resolvent.ops.blocked.tables import diagonal_blocks
from resolvent.ops.modes.operation import Modes, Source
from resolvent.runtime.dispatch import Candidate, choose, lazily, nothing, triton_or
from resolvent.runtime.transforms import (
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
)

STEPS = 64, 32, 16  # of a block
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class Plan(NamedTuple):
    """The settings of a pass: blocks of T steps, products in `dtype`."""

    modes: Modes
    option: str
    T: int
    delay: bool
    dtype: torch.dtype


def serves(source: Any, x: Tensor, h0: Tensor | None) -> bool:
    """Whether the kernels support this pass; a start inside a block falls back to `ops.blocked`."""
    if not (x.is_cuda and isinstance(source, Source) and x.numel() and source.option in source.modes.fused):
        return False
    if h0 is not None and x.shape[1] % STEPS[-1]:
        return False
    ready = source.parameters[0].dtype == torch.float32 and is_untransformed() and not is_traced(x, h0)
    name, candidates = f"{source.modes.kind.value}_scan", _candidates(source.modes)
    return ready and choose(name, candidates, x.device, torch.float32) is not nothing


def bank_scan(
    source: Source, x: Tensor, h0: Tensor | None, lengths: Tensor | None, delay: bool, dtype: torch.dtype,
    keep: Callable[[str, Callable[[], Any]], Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y (b, l, d) in x's dtype, zero beyond `lengths`, and the state (b, d, s) at each sequence's end in float32.

    h0 (b, d, s) or None. `keep(key, make)` gives the tables cached in `frozen()`, or None outside it: they are then
    made in the pass, with gradients for the parameters.
    """
    T, kernels, kind = choose_steps(x.shape[1], h0 is not None), load_kernels(), source.modes.kind
    plan = Plan(source.modes, source.option, T, delay, dtype)
    making = Making(
        lambda own: kernels.make_tables(kind, own, T, delay, dtype),
        lambda own, found: kernels.parameter_gradients(kind, own, found, T, delay),
        lambda x, h0, own: run_by_torch(plan, x, h0, lengths, own),
    )
    tables = keep(f"bank {T} {dtype} {delay}", lambda: making.make(source.parameters))
    return run_scan(making, tables, x, h0, lengths, source.parameters)


def choose_steps(l: int, starts: bool) -> int:
    """Steps of a block: a given initial state requires blocks aligned at the start."""
    fitting = [T for T in STEPS if not starts or l % T == 0]
    return next((T for T in reversed(fitting) if l <= T), fitting[0])


class Making(NamedTuple):
    """How the tables of a pass are made from tensors, which receive gradients."""

    make: Callable[[Sequence[Tensor]], Any]  # the kernels' tables
    slopes: Callable[[Sequence[Tensor], Any], Sequence[Tensor | None]]  # from the product and parts that kernels give
    by_torch: Callable[..., tuple[Tensor, Tensor]]  # (x, h0, tensors): the pass in torch operations


def run_scan(
    making: Making, tables: Any, x: Tensor, h0: Tensor | None, lengths: Tensor | None, own: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """y and the last states from given tables, or tables made from `own`."""
    lengths = None if lengths is None else lengths.to(x.device)
    h0 = None if h0 is None else h0.contiguous()
    y, end = _BankScan.apply(making, tables, lengths, x, h0, *own)
    return y, end


def run_by_torch(
    plan: Plan, x: Tensor, h0: Tensor | None, lengths: Tensor | None, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, differentiable to every order."""
    bank = plan.modes.bank(parameters, plan.option)
    own = parameters[0].dtype
    tables = diagonal_blocks(bank, blocked.block_length(x.shape[1]), own, plan.delay, by_hand=False)
    y, end = run_blocks(tables, x.to(own), h0, lengths)
    return y.to(x.dtype), end


def run_blocks(blocks: Blocks, x: Tensor, h0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """y (b, l, d), zero beyond `lengths`, and the state at each sequence's end, in torch operations."""
    if lengths is None:
        return blocked.run(blocks, x, h0, by_hand=False)
    padding = (torch.arange(x.shape[1], device=x.device) >= lengths.to(x.device)[:, None])[..., None]
    y, end = blocked.run(blocks, x.masked_fill(padding, 0), h0, lengths, by_hand=False)
    return y.masked_fill(padding, 0), end


class _BankScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, making: Making, tables: Any, lengths: Tensor | None, x: Tensor, h0: Tensor | None, *own: Tensor
    ) -> tuple[Tensor, Tensor]:
        tables = making.make(own) if tables is None else tables
        y, end, kept = load_kernels().run(tables, x, h0, lengths)
        learn = any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(x, h0, lengths, *tables[:3], kept.rows if learn else None, *own)
        ctx.making, ctx.dense = making, tables.dense
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        x, h0, lengths, ahead, back, whole, rows, *own = ctx.saved_tensors
        making, kernels = ctx.making, load_kernels()
        if by_graph_only(*gradients):
            run = lambda x, h0, *own: making.by_torch(x, h0, own)  # noqa: E731
            return *(None,) * 3, *gradients_by_graph(run, (x, h0, *own), gradients, ctx.needs_input_grad[3:])
        tables, kept = kernels.Tables(ahead, back, whole, ctx.dense), kernels.Rows(rows, lengths, x.shape)
        gy = torch.zeros_like(x) if gradients[0] is None else gradients[0]
        g_end = None if gradients[1] is None else gradients[1].contiguous()
        gx, g_h0, found = kernels.gradients(tables, kept, gy, g_end, start=ctx.needs_input_grad[4])
        slopes = (None,) * len(own) if found is None else making.slopes(own, found)
        return None, None, None, gx, g_h0, *slopes


# -- where the kernels run ---------------------------------------------------------------------------------------------


load_kernels = lazily("ops.bank_scan.triton")


def agrees(kernels: Any, modes: Modes, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether values and gradients of a short pass, with lengths, are those of `run_by_torch`."""
    parameters = [p.to(device, torch.float32) for p in modes.example()]
    plan, shape = Plan(modes, modes.fused[0], 16, False, dtype), (2, 37, 3)
    x = torch.sin(torch.arange(222, device=device) ** 1.5).view(shape).float()
    lengths = torch.tensor([37, 21], device=device)
    tables = kernels.make_tables(modes.kind, parameters, plan.T, plan.delay, dtype)
    y, end, kept = kernels.run(tables, x, None, lengths)
    gx, _, found = kernels.gradients(tables, kept, x, end, start=False)
    slopes = kernels.parameter_gradients(modes.kind, parameters, found, plan.T, plan.delay)
    with torch.enable_grad():
        own = [t.requires_grad_() for t in (x.double(), *(p.double() for p in parameters))]
        want = run_by_torch(plan, own[0], None, lengths, own[1:])
        wanted = torch.autograd.grad(want, own, (x.double(), end.double()))
    pairs = zip((y, end, gx, *slopes), (*want, *wanted), strict=True)
    return all(bool((g.double() - w).norm() <= CLOSE[dtype] * w.norm()) for g, w in pairs)


@cache
def _candidates(modes: Modes) -> tuple[Candidate, ...]:
    def probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
        return all(agrees(kernels, modes, device, kind) for kind in CLOSE)

    return triton_or(nothing, load_kernels, probe)
