"""The Triton linear scan called from torch: layouts, the split into programs, and the pass that joins chunks.

b may be stored as (..., l, n) or, a transposed view, as (..., n, l); the states have b's layout. Rows with enough
channels to fill the device run in one pass over memory. Otherwise time is split into chunks, which pass their states
on in one launch (`relay`). If that does not apply, one pass computes the last state and the product of every chunk,
and a second one runs from the entering states. A chunk computes its own from the results of the chunks before it; if
there are many, a short scan in between computes them for all. The split depends on the shapes alone, so that results
are deterministic, bit for bit.

Such a scan takes some ten microseconds on the device, which the host must not exceed: launch arguments are prepared
once for all launches of a call, and the split of a shape is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from resolvent.ops.linear_scan.checks import HALF
from resolvent.ops.linear_scan.relay.launch import WIDTH, Relay, cut_relay, run_relay
from resolvent.ops.linear_scan.rows import multiplier_rows, sum_to
from resolvent.ops.linear_scan.torch import chunked_scan
from resolvent.ops.linear_scan.triton_kernels import scan_kernel
from resolvent.runtime.launch import attempt, on_device
from resolvent.runtime.trust import refuse, trust

T = TypeVar("T")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
ENOUGH = 264  # warps: two on each of 132 multiprocessors, below which time is split
SHORT = 128  # steps up to which one launch of few programs is faster than three
WANTED = 2112  # target warps then: sixteen on each
FEW = 512  # chunks whose ends each program joins itself: at most 2112 x 256 x 32 pairs of words from the L2 cache
JOINED = 8  # of them at a time


class Plan(NamedTuple):
    """The split of one scan: tiles of bt steps by bn channels, `chunks` chunks of `chunk` steps, `stages` tiles ahead.

    joined  number of chunks at a time joined by the second pass itself; 0: a launch in between joins them all
    """

    bt: int
    bn: int
    stages: int
    warps: int
    chunk: int
    chunks: int
    joined: int = 0


class Job(NamedTuple):
    """Sizes and pointers shared by every pass over the same data; `words` are a and b as kernel arguments."""

    a: Tensor
    b: Tensor
    words: tuple[Tensor, Tensor]
    rows: int
    l: int
    n: int
    div: int
    time_last: bool
    down: bool
    adjoint: bool
    constant: bool
    pairs: bool  # two adjacent bfloat16 channels are one word: prefetching needs four bytes
    marks: Tensor | None = None  # (rows or 1, l) where the state is reset, as read by the kernel

    @property
    def scratch(self) -> torch.dtype:
        return torch.complex64 if self.b.dtype == torch.complex64 else torch.float32


def triton_scan(
    a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False, reset: Tensor | None = None
) -> Tensor:
    """h_t = a_t h_{t-1} + b_t; a has the rank of b (..., l, n) and broadcasts to it, h0 is (..., n), reset (..., l)."""
    _check(b)
    args = (a, b, h0, reverse, reset)
    key = ("linear_scan", b.dtype, reset is None)
    return attempt(key, lambda: _scan(*args), lambda: _by_torch(False, args))


def _scan(
    a: Tensor,
    b: Tensor,
    h0: Tensor | None,
    reverse: bool,
    reset: Tensor | None = None,
    plan: Plan | Relay | None = None,
) -> Tensor:
    job = _job(a, b, down=reverse, adjoint=False, reset=reset)
    h = _like(b, job.time_last)
    _by_plan(job, plan, lambda plan: _run(job, plan, h, h0))
    return h


def short_scan(a: Tensor, b: Tensor, h0: Tensor | None = None) -> Tensor:
    """`triton_scan` without chunks, in one launch: for the chunk results of another scan, (..., l, n) each."""
    if b.shape[-2] > SHORT:
        return triton_scan(a, b, h0)
    h, job = torch.empty_like(b), _job(a, b, down=False, adjoint=False)
    bt, bn = min(32, _power_of_2(job.l)), min(32, _power_of_2(job.n))
    _run(job, Plan(bt, bn, 1, 1, job.l, 1), h, h0)
    return h


def triton_backward(
    g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) in one pass over g, a and h."""
    _check(h)
    args = (g, a, h, h0, reverse, reset)
    key = ("linear_scan_backward", h.dtype, reset is None)
    return attempt(key, lambda: _backward(*args), lambda: _by_torch(True, args))


def _by_torch(backward: bool, args: tuple[Any, ...]) -> Any:
    from resolvent.ops.linear_scan import kernels

    kernel = kernels.in_float32(kernels.compose_backward(chunked_scan) if backward else chunked_scan)
    *given, reset = args
    if reset is None:
        return kernel(*given)
    marked: Callable[..., Any] = kernels.marked_backward if backward else kernels.marked_forward
    return marked(kernel, *given, reset)


triton_scan.takes_marks = triton_backward.takes_marks = True  # type: ignore[attr-defined]


def _backward(
    g: Tensor,
    a: Tensor,
    h: Tensor,
    h0: Tensor | None,
    reverse: bool,
    reset: Tensor | None = None,
    plan: Plan | Relay | None = None,
) -> tuple[Tensor, Tensor]:
    time_last = _is_time_last(h)
    job = _job(a, _as(g, time_last), down=not reverse, adjoint=True, reset=reset)
    states, gb = _as(h, time_last), _like(h, time_last)

    def run(plan: Plan | Relay) -> Tensor:
        if not job.constant:
            ga = _like(h, time_last)
            _run(job, plan, gb, h0, states, ga)
            return sum_to(ga, a.shape)
        parts = torch.empty((*h.shape[:-2], plan.chunks, job.n), dtype=job.scratch, device=h.device)
        _run(job, plan, gb, h0, states, parts)
        return sum_to(parts, a.shape).to(a.dtype)

    return _by_plan(job, plan, run), gb


def _by_plan(job: Job, plan: Plan | Relay | None, run: Callable[[Plan | Relay], T]) -> T:
    """`run` with the given or chosen plan, or several launches if a single one does not compile."""
    if plan is not None:
        return run(plan)
    plan = _plan(job)
    if isinstance(plan, Plan):
        return run(plan)
    try:
        return run(plan)
    except torch.OutOfMemoryError:
        raise  # unrelated to the kernel
    except Exception as error:
        refuse(_kind(job), str(error))
    return run(_plan(job))


def _check(b: Tensor) -> None:
    if b.dtype not in DTYPES:
        raise TypeError(f"linear_scan: the triton backend takes float32, complex64 and half types, got {b.dtype}.")


# -- memory ------------------------------------------------------------------------------------------------------------


def _is_time_last(b: Tensor) -> bool:
    return not b.is_contiguous() and b.mT.is_contiguous()


def _as(x: Tensor, time_last: bool) -> Tensor:
    """x without pending conjugation, dense in the required order, aligned to words."""
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
    """Memory as words: a complex number, or two numbers in a pair, is one word."""
    x = x.mT if time_last else x
    if pairs:
        return x.view(torch.int32 if x.dtype == torch.bfloat16 else torch.int64)
    return x.view(torch.int64) if x.is_complex() else x


def _job(a: Tensor, b: Tensor, down: bool, adjoint: bool, reset: Tensor | None = None) -> Job:
    time_last = _is_time_last(b)
    l, n = b.shape[-2:]
    source, div = multiplier_rows(a, b.shape)
    constant = source.shape[-2] == 1
    source, b = _as(source, time_last and not constant), _as(b, time_last)
    pairs = b.dtype == torch.bfloat16 and not time_last and n % 2 == 0
    marks = None if reset is None else _marks(reset, b.shape[:-1], time_last, down)
    words = _words(source, time_last and not constant, pairs), _words(b, time_last, pairs)
    rows = prod(b.shape[:-2])
    return Job(source, b, words, rows, l, n, div, time_last, down, adjoint, constant, pairs, marks)


def _marks(reset: Tensor, steps: torch.Size, time_last: bool, down: bool) -> Tensor:
    """(rows, l), or (1, l) if equal for all rows: 1 where a step resets the state, plus 2 where the next one does,
    as needed by the adjoint.

    Four bytes allow prefetching. With time last there is no prefetching, and fewer bytes are better.
    """
    if prod(reset.shape[:-1]) > 1:
        reset = reset.expand(steps)
    marks = reset.reshape(-1, steps[-1]).to(torch.int8 if time_last else torch.int32)
    return marks + 2 * marks.roll(-1 if down else 1, -1)


# -- the split and the launches ----------------------------------------------------------------------------------------


def _plan(job: Job) -> Plan | Relay:
    n = job.n // 2 if job.pairs else job.n
    plan = cut(job.rows, job.l, n, job.time_last, job.b.element_size() < 4 and not job.pairs)
    if plan.chunks > 1 and not job.time_last and n % WIDTH == 0 and trust(_kind(job), lambda: _probe(job)):
        return cut_relay(job.l, job.pairs or job.b.is_complex())
    return plan


def _kind(job: Job) -> tuple[Any, ...]:
    return "relay", job.b.dtype, job.b.device, job.constant, job.adjoint, job.marks is not None


def _probe(job: Job) -> bool:
    """Two rows of five chunks, in groups of two, against torch in float64."""
    dtype, device = job.b.dtype, job.b.device
    plan = cut_relay(1, job.pairs or dtype.is_complex)
    shape = 2, 5 * plan.steps * plan.side, WIDTH * (2 if job.pairs else 1)
    plan = plan._replace(chunks=5, group=2)
    b = torch.linspace(0, 99, prod(shape), dtype=torch.float64, device=device).cos().reshape(shape).to(dtype)
    a = (0.9 - 0.1 * b[:1, : 1 if job.constant else shape[1]].real).to(dtype) * (0.8 + 0.6j if dtype.is_complex else 1)
    reset = None if job.marks is None else torch.arange(shape[1], device=device)[None] % 333 == 9
    args = a, b, b[:, 1], False, reset
    wide = [x.to(torch.complex128 if dtype.is_complex else torch.float64) for x in args[:3]]
    if not job.adjoint:
        return _is_close([_scan(*args, plan)], [_by_torch(False, (*wide, *args[3:]))])
    return _is_close(_backward(b, *args, plan), _by_torch(True, (wide[1], *wide, *args[3:])))


def _is_close(found: Sequence[Tensor], true: Sequence[Tensor]) -> bool:
    allowed = 2e-2 if found[0].dtype in HALF else 1e-4
    return all(
        bool((x.to(y.dtype) - y).abs().max() <= allowed * y.abs().max()) for x, y in zip(found, true, strict=True)
    )


@lru_cache(maxsize=4096)
def cut(rows: int, l: int, n: int, time_last: bool, narrow: bool) -> Plan:
    """The plan for rows of l steps of n words; `narrow` ones have fewer than four bytes and cannot be prefetched.

    On 132 multiprocessors: (8, 4096, 64) complex numbers are 16 warps of 32 channels, cut into 128 chunks of 32 steps;
    (1, 65536, 256) real ones 8 warps, split into 261 chunks of 252.
    """
    if time_last:
        bt, bn, stages, warps = min(1024, max(16, _power_of_2(l))), 1, 1, 4
    else:
        bt, bn, stages, warps = 4, min(32, _power_of_2(n)), 8, 1
        if narrow:  # use a taller tile instead
            bt, stages = 32, 1
    return _cut_time(rows, l, n, Plan(bt, bn, stages, warps, l, 1, 0 if time_last else JOINED), ENOUGH, WANTED)


def _cut_time(rows: int, l: int, n: int, tile: Plan, enough: int, wanted: int) -> Plan:
    """The same tiles, with time split into chunks for about `wanted` warps if there are fewer than `enough`."""
    warps, tiles = rows * _quotient(n, tile.bn) * tile.warps, _quotient(l, tile.bt)
    if warps >= enough or tiles < 8:
        return tile._replace(chunk=l, chunks=1, joined=0)
    chunk = tile.bt * max(4, _quotient(tiles * warps, wanted))
    chunks = _quotient(l, chunk)
    return tile._replace(chunk=chunk, chunks=chunks, joined=tile.joined if chunks <= FEW else 0)


def _quotient(x: int, y: int) -> int:
    """x / y, rounded up; Triton's own is slower than a launch."""
    return -(-x // y)


def _power_of_2(x: int) -> int:
    """The smallest one that is at least x."""
    return 1 << (x - 1).bit_length()


def _run(
    job: Job, plan: Plan | Relay, out: Tensor, h0: Tensor | None, states: Tensor | None = None, ga: Tensor | None = None
) -> None:
    """Fill `out`, and `ga` if given; h0 is the initial state of a forward scan, and for ∂a that of its states."""
    last, pairs = job.time_last, job.pairs
    out = _words(out, last, pairs)
    given: dict[str, Any] = {
        "before": None if h0 is None else _words(_as(h0, False), False, pairs),
        "states": None if states is None else _words(states, last, pairs),
        "ga": None if ga is None else _words(ga, last and not job.constant, pairs),
    }
    if isinstance(plan, Relay):
        run_relay(job, plan, out, **given)
        return
    if plan.chunks == 1:
        _launch(job, plan, out=out, **given)
        return
    arrays = 2 if plan.joined else 3
    scratch = torch.empty((arrays, job.rows, plan.chunks, job.n), dtype=job.scratch, device=out.device)
    ends, products, *starts = _words(scratch, False, pairs).unbind(0)
    _launch(job, plan, out=out, start=ends, product=products, ends=True)
    if plan.joined:
        _launch(job, plan, out=out, start=ends, product=products, **given)
        return
    carry = _job(scratch[1], scratch[0], down=False, adjoint=False)
    _run(carry, _carry_plan(plan), scratch[2], None if job.adjoint or h0 is None else h0.to(job.scratch))
    _launch(job, plan, out=out, start=starts[0], **given)


def _carry_plan(plan: Plan) -> Plan:
    return Plan(min(32, _power_of_2(plan.chunks)), min(plan.bn * 32, 32), 1, 1, plan.chunks, 1)


def _launch(
    job: Job, plan: Plan, *, out: Tensor, ends: bool = False, start: Tensor | None = None,
    product: Tensor | None = None, states: Tensor | None = None, before: Tensor | None = None, ga: Tensor | None = None,
) -> None:  # fmt: skip
    """One pass; arrays are kernel arguments."""
    a, b = job.words
    n, marks = b.shape[-2] if job.time_last else b.shape[-1], job.marks
    grid = (job.rows * plan.chunks * _quotient(n, plan.bn),)
    started = start is not None and not ends
    with on_device(b):
        scan_kernel[grid](
            a, b, b if start is None else start, out, b if product is None else product,
            b if states is None else states, b if before is None else before, b if ga is None else ga, marks,
            job.l, n, plan.chunk, plan.chunks, job.a.numel() // (job.a.shape[-2] * job.n), job.div, 1,
            DOWN=job.down, CONSTANT=job.constant, COMPLEX=job.b.is_complex(), PAIRS=job.pairs, TIME_LAST=job.time_last,
            ENDS=ends, STARTED=started, JOINED=plan.joined if started else 0, ADJOINT=job.adjoint,
            GRADIENT=ga is not None, GIVEN=before is not None, PACKED=marks is not None,
            SHARED=marks is not None and len(marks) == 1, BT=plan.bt, BN=plan.bn, STAGES=plan.stages,
            num_warps=plan.warps,
        )  # fmt: skip
