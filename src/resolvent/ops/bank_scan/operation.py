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
from resolvent.ops.blocked.tables import diagonal_blocks
from resolvent.ops.modes.operation import Modes, Source
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
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
    source: Source,
    x: Tensor,
    h0: Tensor | None,
    lengths: Tensor | None,
    delay: bool,
    dtype: torch.dtype,
    keep: Callable[[str, Callable[[], Any]], Any],
) -> tuple[Tensor, Tensor]:
    """y (b, l, d) in x's dtype, zero beyond `lengths`, and the state (b, d, s) at each sequence's end in float32.

    h0 (b, d, s) or None. `keep(key, make)` gives the tables cached in `frozen()`, or None outside it: they are then
    made in the pass, with gradients for the parameters.
    """
    T = choose_steps(x.shape[1], h0 is not None)
    plan = Plan(source.modes, source.option, T, delay, dtype)
    tables = keep(f"bank {T} {dtype} {delay}", lambda: _make_tables(plan, source.parameters))
    lengths = None if lengths is None else lengths.to(x.device)
    h0 = None if h0 is None else h0.contiguous()
    y, end = _BankScan.apply(plan, tables, lengths, x, h0, *source.parameters)
    return y, end


def choose_steps(l: int, starts: bool) -> int:
    """Steps of a block: a given initial state requires blocks aligned at the start."""
    fitting = [T for T in STEPS if not starts or l % T == 0]
    return next((T for T in reversed(fitting) if l <= T), fitting[0])


def _make_tables(plan: Plan, parameters: Sequence[Tensor]) -> Any:
    return load_kernels().make_tables(plan.modes.kind, parameters, plan.T, plan.delay, plan.dtype)


def run_by_torch(
    plan: Plan, x: Tensor, h0: Tensor | None, lengths: Tensor | None, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, differentiable to every order."""
    bank = plan.modes.bank(parameters, plan.option)
    own = parameters[0].dtype
    tables = diagonal_blocks(bank, blocked.block_length(x.shape[1]), own, plan.delay, by_hand=False)
    if lengths is None:
        padding = None
        u = x.to(own)
    else:
        padding = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]
        u = x.to(own).masked_fill(padding, 0)
    y, end = blocked.run(tables, u, h0, lengths, by_hand=False)
    return (y if padding is None else y.masked_fill(padding, 0)).to(x.dtype), end


class _BankScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, tables: Any, lengths: Tensor | None, x: Tensor, h0: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        kernels = load_kernels()
        if tables is None:
            tables = _make_tables(plan, parameters)
        y, end, kept = kernels.run(tables, x, h0, lengths)
        learn = any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(x, h0, lengths, *tables[:3], kept.rows if learn else None, *parameters)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        x, h0, lengths, ahead, back, whole, rows, *parameters = ctx.saved_tensors
        plan, kernels = ctx.plan, load_kernels()
        tables = kernels.Tables(ahead, back, whole)
        gy = torch.zeros_like(x) if gradients[0] is None else gradients[0]
        if by_graph_only(*gradients):
            run = lambda x, h0, *own: run_by_torch(plan, x, h0, lengths, own)  # noqa: E731
            found = gradients_by_graph(run, (x, h0, *parameters), gradients, ctx.needs_input_grad[3:])
            return *(None,) * 3, *found
        g_end = None if gradients[1] is None else gradients[1].contiguous()
        kept = kernels.Rows(rows, lengths, x.shape)
        gx, g_h0, found = kernels.gradients(tables, kept, gy, g_end, start=ctx.needs_input_grad[4])
        slopes: list[Tensor | None] = [None] * len(parameters)
        if found is not None:
            slopes[:] = kernels.parameter_gradients(plan.modes.kind, parameters, found, plan.T, plan.delay)
        return None, None, None, gx, g_h0, *slopes


# -- where the kernels run ---------------------------------------------------------------------------------------------


def load_kernels() -> Any:
    from resolvent.ops.bank_scan import triton as bank_triton

    return bank_triton


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
