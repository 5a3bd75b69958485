"""`bank_scan` for compilers: from parameters and input to output in one opaque node, and one for the gradients.

Inside, the kernels of an eager pass run; the tables and rows they save are outputs, so that nothing is recomputed.
Where they do not apply, `run_by_torch` runs, once forward and once more for the gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.bank_scan.operation import STEPS, Plan, load_kernels, run_by_torch, serves
from resolvent.ops.library import one_by_one, recording
from resolvent.ops.modes.operation import KNOWN, Kind, Source
from resolvent.runtime.transforms import as_run, gradients_by_graph, is_traced

DEVICES = {"cuda"}
Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # y, last state, ahead, back, A^T and rows


def serves_traced(source: Source, x: Tensor, h0: Tensor | None) -> bool:
    """Whether this pass is one node: on one of DEVICES, from the zero state, and not inside `plain_operations()`."""
    if h0 is not None or not is_traced(x):
        return False
    return source.option in source.modes.fused and x.dtype == source.parameters[0].dtype and not plain.is_chosen()


def traced_scan(source: Source, x: Tensor, lengths: Tensor | None, delay: bool, half: bool) -> tuple[Tensor, Tensor]:
    """As `bank_scan`; `half`: products in bfloat16."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    T = next((T for T in reversed(STEPS) if statically_known_true(x.shape[1] <= T)), STEPS[0])
    y, end, *_ = _scan(list(source.parameters), x, lengths, source.modes.kind.value, source.option, T, delay, half)
    return y, end


def _plan(like: Tensor, kind: str, option: str, T: int, delay: bool, half: bool) -> Plan:
    return Plan(KNOWN[kind], option, T, delay, torch.bfloat16 if half else like.dtype)


@torch.library.custom_op("resolvent::bank_scan", mutates_args=())
def _scan(
    parameters: list[Tensor], x: Tensor, lengths: Tensor | None, kind: str, option: str, T: int, delay: bool, half: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = _plan(parameters[0], kind, option, T, delay, half)
    with as_run():
        if serves(Source(plan.modes, parameters, option), x, None):
            kernels = load_kernels()
            tables = kernels.make_tables(plan.modes.kind, parameters, T, delay, plan.dtype)
            y, end, kept = kernels.run(tables, x, None, lengths)
            return y, end, *tables[:3], kept.rows
        y, end = run_by_torch(plan, x, None, lengths, parameters)
    idle = [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in _lay_out_kept(parameters, x, plan)]
    return y.contiguous(), end.contiguous(), idle[0], idle[1], idle[2], idle[3]


def _lay_out_kept(parameters: list[Tensor], x: Tensor, plan: Plan) -> list[Tensor]:
    """Uninitialised tables and rows."""
    like, T, (b, l, d) = parameters[3], plan.T, x.shape
    n = like.shape[1]
    width = T + (n if plan.modes.kind is Kind.EMA else 2 * n)
    whole = (d, n) if plan.modes.kind is Kind.EMA else (d, n, 2)
    rows = d, b * ((l + T - 1) // T), width
    own = [like.new_empty(shape, dtype=plan.dtype) for shape in ((d, T, width), (d, T, width))]
    return [*own, like.new_empty(whole), like.new_empty(rows, dtype=plan.dtype)]


@_scan.register_fake
def _(parameters: list[Tensor], x: Tensor, lengths: Tensor | None, *how: Any) -> Made:
    ahead, back, whole, rows = _lay_out_kept(parameters, x, _plan(parameters[0], *how))
    b, _, d = x.shape
    return x.new_empty(x.shape), whole.new_empty(b, d, ahead.shape[2] - ahead.shape[1]), ahead, back, whole, rows


@torch.library.custom_op("resolvent::bank_scan_backward", mutates_args=())
def _scan_backward(
    gy: Tensor, g_end: Tensor | None, parameters: list[Tensor], x: Tensor, lengths: Tensor | None, kept: list[Tensor],
    kind: str, option: str, T: int, delay: bool, half: bool,
) -> list[Tensor]:  # fmt: skip
    plan = _plan(parameters[0], kind, option, T, delay, half)
    with as_run():
        if serves(Source(plan.modes, parameters, option), x, None):
            kernels, (ahead, back, whole, rows) = load_kernels(), kept
            tables, saved = kernels.Tables(ahead, back, whole), kernels.Rows(rows, lengths, x.shape)
            gx, _, found = kernels.gradients(tables, saved, gy, g_end, start=False)
            slopes = kernels.parameter_gradients(plan.modes.kind, parameters, found, T, delay)
            return [t.contiguous() for t in (gx, *slopes)]
        with recording():
            own = [t.detach().requires_grad_() for t in (x, *parameters)]
            made = run_by_torch(plan, own[0], None, lengths, own[1:])
            g = (gy, torch.zeros_like(made[1]) if g_end is None else g_end)
            return [t.contiguous() for t in torch.autograd.grad(made, own, g, materialize_grads=True)]


@_scan_backward.register_fake
def _(gy: Tensor, g_end: Tensor | None, parameters: list[Tensor], x: Tensor, *rest: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (x, *parameters)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Made) -> None:
    parameters, x, lengths, *ctx.how = inputs
    ctx.save_for_backward(x, lengths, *output[2:], *parameters)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, gy: Tensor | None, g_end: Tensor | None, *g_kept: Any) -> tuple[Any, ...]:
    x, lengths, *rest = ctx.saved_tensors
    kept, parameters = rest[:4], rest[4:]
    gy = torch.zeros_like(x) if gy is None else gy
    if torch.is_grad_enabled():
        plan = _plan(parameters[0], *ctx.how)
        run = lambda x, *own: run_by_torch(plan, x, None, lengths, own)  # noqa: E731
        with as_run():
            gx, *found = gradients_by_graph(run, (x, *parameters), (gy, g_end), [True] * (1 + len(parameters)))
    else:
        end = None if g_end is None else g_end.contiguous()
        gx, *found = _scan_backward(gy.contiguous(), end, parameters, x, lengths, kept, *ctx.how)
    return found, gx, *(None,) * 6


_scan.register_autograd(_gradients, setup_context=_save)
one_by_one(_scan)
one_by_one(_scan_backward)
