"""The Triton linear scan called from torch: layouts, the cut into programs, and the pass that joins chunks.

b may lie in memory as (..., l, n) or, a transposed view, as (..., n, l); the states come back as b lies. Rows with
channels enough to fill the device run in one pass over memory. Fewer are cut into chunks of time: the last state and
the product of every chunk, a short scan over those, and a second pass from the states so found. The cut depends on the
shapes alone, so that the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from resolvent.ops.linear_scan.checks import HALF
from resolvent.ops.linear_scan.rows import multiplier_rows, sum_to
from resolvent.ops.linear_scan.torch import chunked_scan
from resolvent.ops.linear_scan.triton_kernels import scan_kernel
from resolvent.runtime.launch import attempt, on_device

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
ENOUGH = 264  # warps: two on each of 132 multiprocessors, below which time is cut
SHORT = 128  # steps that are quicker in one launch of few programs than in three
WANTED = 2112  # warps to aim for then: sixteen on each


@dataclass(frozen=True)
class Plan:
    """How one scan is cut: tiles of bt steps by bn channels, `chunks` chunks of `chunk` steps, loads `stages` ahead."""

    bt: int
    bn: int
    stages: int
    warps: int
    chunk: int
    chunks: int


@dataclass(frozen=True)
class Job:
    """Sizes and pointers that every pass over the same data shares."""

    a: Tensor
    b: Tensor
    rows: int
    l: int
    n: int
    div: int
    time_last: bool
    down: bool
    adjoint: bool
    marks: Tensor | None = None  # (rows or 1, l) where the state is forgotten, as the kernel reads it

    @property
    def constant(self) -> bool:
        return self.a.shape[-2] == 1

    @property
    def pairs(self) -> bool:
        """Whether two neighbouring bfloat16 channels go as one word: copies ahead of use need four bytes."""
        return self.b.dtype == torch.bfloat16 and not self.time_last and self.n % 2 == 0

    @property
    def scratch(self) -> torch.dtype:
        return torch.complex64 if self.b.is_complex() else torch.float32


def triton_scan(
    a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False, reset: Tensor | None = None
) -> Tensor:
    """h_t = a_t h_{t-1} + b_t; a has the rank of b (..., l, n) and broadcasts to it, h0 is (..., n), reset (..., l)."""
    _check(b)
    args = (a, b, h0, reverse, reset)
    key = ("linear_scan", b.dtype, reset is None)
    return attempt(key, lambda: _scan(*args), lambda: _by_torch(b, False, args))


def _scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None) -> Tensor:
    job = _job(a, b, down=reverse, adjoint=False, reset=reset)
    h = _like(b, job.time_last)
    _run(job, h, h0)
    return h


def short_scan(a: Tensor, b: Tensor, h0: Tensor | None = None) -> Tensor:
    """`triton_scan` without cuts, in one launch: for what the chunks of another scan hand on, (..., l, n) each."""
    if b.shape[-2] > SHORT:
        return triton_scan(a, b, h0)
    h, job = torch.empty_like(b), _job(a, b, down=False, adjoint=False)
    bt, bn = min(32, triton.next_power_of_2(job.l)), min(32, triton.next_power_of_2(job.n))
    _launch(job, Plan(bt, bn, 1, 1, job.l, 1), out=h, before=h0)
    return h


def triton_backward(
    g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) in one pass over g, a and h."""
    _check(h)
    args = (g, a, h, h0, reverse, reset)
    key = ("linear_scan_backward", h.dtype, reset is None)
    return attempt(key, lambda: _backward(*args), lambda: _by_torch(h, True, args))


def _by_torch(b: Tensor, backward: bool, args: tuple[Any, ...]) -> Any:
    from resolvent.ops.linear_scan import kernels

    kernel = kernels.compose_backward(chunked_scan) if backward else chunked_scan
    kernel = kernels.in_float32(kernel) if b.dtype in HALF else kernel
    *given, reset = args
    if reset is None:
        return kernel(*given)
    marked: Callable[..., Any] = kernels.marked_backward if backward else kernels.marked_forward
    return marked(kernel, *given, reset)


triton_scan.takes_marks = triton_backward.takes_marks = True  # type: ignore[attr-defined]


def _backward(
    g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    time_last = _is_time_last(h)
    job = _job(a, _as(g, time_last), down=not reverse, adjoint=True, reset=reset)
    states, gb = _as(h, time_last), _like(h, time_last)
    if not job.constant:
        ga = _like(h, time_last)
        _run(job, gb, h0, states, ga)
        return sum_to(ga, a.shape), gb
    plan = _plan(job)
    parts = torch.empty((job.rows, plan.chunks, job.n), dtype=job.scratch, device=h.device)
    _run(job, gb, h0, states, parts, plan)
    ga = parts.sum(1).reshape(*h.shape[:-2], 1, job.n)
    return sum_to(ga, a.shape).to(a.dtype), gb


def _check(b: Tensor) -> None:
    if b.dtype not in DTYPES:
        raise TypeError(f"linear_scan: the triton backend takes float32, complex64 and half types, got {b.dtype}.")


# -- memory ------------------------------------------------------------------------------------------------------------


def _is_time_last(b: Tensor) -> bool:
    return not b.is_contiguous() and b.mT.is_contiguous()


def _as(x: Tensor, time_last: bool) -> Tensor:
    """x without pending conjugation, dense in the wanted order, whole words from the first number on."""
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    x = x.detach()
    x = x.mT.contiguous().mT if time_last else x.contiguous()
    return x if x.data_ptr() % 8 == 0 else x.clone()


def _like(b: Tensor, time_last: bool) -> Tensor:
    if not time_last:
        return torch.empty(b.shape, dtype=b.dtype, device=b.device)
    return torch.empty(b.mT.shape, dtype=b.dtype, device=b.device).mT


def _words(x: Tensor, time_last: bool, pairs: bool) -> Tensor:
    """Memory as the kernel takes it: a complex number is one 64-bit word, and so are two numbers that go together."""
    x = x.mT if time_last else x
    if pairs:
        return x.view(torch.int32 if x.dtype == torch.bfloat16 else torch.int64)
    return x.view(torch.int64) if x.is_complex() else x


def _job(a: Tensor, b: Tensor, down: bool, adjoint: bool, reset: Tensor | None = None) -> Job:
    time_last = _is_time_last(b)
    l, n = b.shape[-2:]
    source, div = multiplier_rows(a, b.shape)
    source = _as(source, time_last and source.shape[-2] > 1)
    marks = None if reset is None else _marks(reset, b.shape[:-1], time_last, down)
    return Job(source, _as(b, time_last), prod(b.shape[:-2]), l, n, div, time_last, down, adjoint, marks)


def _marks(reset: Tensor, steps: torch.Size, time_last: bool, down: bool) -> Tensor:
    """(rows, l), or (1, l) where all rows have the same: 1 where a step forgets, plus 2 where the one after it does,
    which is what the adjoint meets.

    Four bytes can be copied ahead of use. With time last there are no such copies, and fewer bytes are better.
    """
    if prod(reset.shape[:-1]) > 1:
        reset = reset.expand(steps)
    marks = reset.reshape(-1, steps[-1]).to(torch.int8 if time_last else torch.int32)
    return marks + 2 * marks.roll(-1 if down else 1, -1)


# -- the cut and the launches ------------------------------------------------------------------------------------------


def _plan(job: Job) -> Plan:
    n = job.n // 2 if job.pairs else job.n
    if job.time_last:
        bt, bn, stages, warps = min(1024, max(16, triton.next_power_of_2(job.l))), 1, 1, 4
    else:
        bt, bn, stages, warps = 4, min(32, triton.next_power_of_2(n)), 8, 1
        if job.b.element_size() < 4 and not job.pairs:  # too narrow to be copied ahead: a taller tile in its place
            bt, stages = 32, 1
    programs = job.rows * triton.cdiv(n, bn) * warps
    chunk, tiles = job.l, triton.cdiv(job.l, bt)
    if programs < ENOUGH and tiles >= 8:
        chunk = bt * max(4, triton.cdiv(tiles * programs, WANTED))
    return Plan(bt, bn, stages, warps, chunk, triton.cdiv(job.l, chunk))


def _run(
    job: Job,
    out: Tensor,
    h0: Tensor | None,
    states: Tensor | None = None,
    ga: Tensor | None = None,
    plan: Plan | None = None,
) -> None:
    """Fill `out`, and `ga` where it is given; h0 is the start of a forward scan, and for ∂a that of its states."""
    plan = _plan(job) if plan is None else plan
    before = None if h0 is None else _as(h0, False)
    if plan.chunks == 1:
        _launch(job, plan, out=out, before=before, states=states, ga=ga)
        return
    size = (job.rows, plan.chunks, job.n)
    ends, products, starts = (torch.empty(size, dtype=job.scratch, device=out.device) for _ in range(3))
    _launch(job, plan, out=out, start=ends, product=products, ends=True)
    carry = _job(products, ends, down=False, adjoint=False)
    _launch(carry, _carry_plan(plan), out=starts, before=None if job.adjoint else before)
    _launch(job, plan, out=out, start=starts, before=before, states=states, ga=ga)


def _carry_plan(plan: Plan) -> Plan:
    return Plan(min(32, triton.next_power_of_2(plan.chunks)), min(plan.bn * 32, 32), 1, 1, plan.chunks, 1)


def _launch(
    job: Job,
    plan: Plan,
    *,
    out: Tensor,
    ends: bool = False,
    start: Tensor | None = None,
    product: Tensor | None = None,
    states: Tensor | None = None,
    before: Tensor | None = None,
    ga: Tensor | None = None,
) -> None:
    pairs = job.pairs
    blank = _words(job.b, job.time_last, pairs)

    def words(x: Tensor | None, time_last: bool = False) -> Tensor:
        return blank if x is None else _words(x, time_last, pairs)

    n, marks = job.n // 2 if pairs else job.n, job.marks
    grid = (job.rows * plan.chunks * triton.cdiv(n, plan.bn),)
    big = job.time_last and not job.constant
    with on_device(job.b):
        scan_kernel[grid](
            words(job.a, big), blank, words(start), words(out, job.time_last), words(product),
            words(states, job.time_last), words(before), words(ga, big), marks,
            job.l, n, plan.chunk, plan.chunks, job.a.numel() // (job.a.shape[-2] * job.n), job.div, 1,
            DOWN=job.down, CONSTANT=job.constant, COMPLEX=job.b.is_complex(), PAIRS=pairs, TIME_LAST=job.time_last,
            ENDS=ends, STARTED=start is not None and not ends, ADJOINT=job.adjoint, GRADIENT=ga is not None,
            GIVEN=before is not None, PACKED=marks is not None, SHARED=marks is not None and len(marks) == 1,
            BT=plan.bt, BN=plan.bn, STAGES=plan.stages, num_warps=plan.warps,
        )  # fmt: skip
