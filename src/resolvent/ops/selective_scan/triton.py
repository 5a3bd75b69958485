"""The Triton selective scan called from torch: memory in and out, the split into programs, and the joining of segments.

Inputs may mix bfloat16, float16 and float32; states and sums are float32. The split of the work
depends on the shapes alone and there are no atomic additions, so that results are deterministic, bit for bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.linear_scan.triton import triton_scan
from resolvent.ops.selective_scan import torch as selective_chunked
from resolvent.ops.selective_scan.inputs import CHUNK, TILE, Inputs, cast, chunks, each, make_steps, undo_steps
from resolvent.ops.selective_scan.triton_backward import T, adjoint_ends_kernel, backward_kernel
from resolvent.ops.selective_scan.triton_forward import forward_kernel
from resolvent.runtime.dispatch import log
from resolvent.runtime.launch import attempt, either, on_device

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_STATES = 64  # per channel: more would not fit in a warp's registers
MOST_NUMBERS = 2**29  # in one sequence: offsets inside it are 32-bit
SEATS = 1056  # concurrent programs on a device: eight warps, one program each, on 132 multiprocessors
FULL = 1000  # programs that fill the device


class Cut(NamedTuple):
    """The split of a pass into programs: `bd` channels with `g` threads each, of one of `segments` segments; tiles of
    t steps, `stages` of them prefetched. In the backward also the chunks per segment, and the `parts` into which
    it is split again to find its entering state."""

    bd: int
    np: int
    segments: int
    g: int = 1
    t: int = 4
    stages: int = 3
    length: int = 0
    parts: int = 1


def forward(
    x: Inputs, reverse: bool, save: bool, reset: Tensor | None = None, bias: Tensor | None = None,
    into: torch.dtype | None = None, often: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y (b, l, d) in the dtype `into`, else that of u, the last state (b, d, n) and the states before each chunk
    (b, chunks, n, d). With a bias (d,) the steps are softplus(dt + bias).

    `often`: the states before each TILE steps, rounded if u is of a half type; the backward then recomputes
    none. The n states of a channel are contiguous.
    """

    def other() -> tuple[Tensor, Tensor, Tensor]:
        return selective_chunked.forward(cast(make_steps(x, bias), torch.float32), reverse, save, reset)

    key = ("selective_scan", x.u.dtype, x.A.shape[1], reset is None, bias is None)
    return attempt(key, lambda: _forward(x, reverse, save, reset, bias, into, often), other) if fits(x) else other()


def _forward(
    x: Inputs, reverse: bool, save: bool, reset: Tensor | None, bias: Tensor | None, into: torch.dtype | None,
    often: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    b, l, d = x.u.shape
    n = x.A.shape[1]
    x = each(_dense, x)
    cut = forward_cut(b, l, d, n, save)
    y = torch.empty((b, l, d), dtype=into or x.u.dtype, device=x.u.device)
    saved = _states(x) if save and often else _new(x, b, chunks(l) if save else 0, d, n)
    before = None if x.h0 is None else x.h0.contiguous()[:, None]  # (b, 1, d, n)
    marks = _marks(reset, reverse)
    if cut.segments > 1:
        ends, product = _new(x, b, cut.segments, d, n), _new(x, b, cut.segments, d, n)
        wide = Cut(_wide(cut.np), cut.np, cut.segments, stages=4)
        _walk(x, bias, wide, reverse, marks, y=y, last=ends, product=product)
        before = _entering(product, ends, x.h0)
    last = _new(x, b, cut.segments, d, n)
    _walk(x, bias, cut, reverse, marks, before=before, y=y, last=last, saved=saved)
    return y, last[:, -1].contiguous(), saved.mT


def backward(
    x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None = None,
    bias: Tensor | None = None, gz: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of every input, each in its dtype, from those of y and of the last state; with a bias also its own.

    That of z is written into `gz` if given, with uniform step stride and contiguous channels. `saved` may be
    of either kind of `forward`; if it has few states, the others are recomputed.
    """

    def other() -> tuple[Tensor | None, ...]:
        wide = cast(make_steps(x, bias), torch.float32)
        few = saved[:, :: CHUNK // TILE] if _are_often(x, saved) else saved
        return undo_steps(x, bias, selective_chunked.backward(wide, few.float(), gy.float(), gh, reverse, reset))

    key = ("selective_scan_backward", x.u.dtype, x.A.shape[1], reset is None, bias is None)
    return attempt(key, lambda: _backward(x, saved, gy, gh, reverse, reset, bias, gz), other) if fits(x) else other()


def _backward(
    x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None, bias: Tensor | None,
    gz: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    b, l, d = x.u.shape
    x = each(_dense, x)
    gy, gh = _dense(gy), gh.detach().contiguous()
    cut = backward_cut(b, l, d, x.A.shape[1])
    marks = _marks(reset, reverse)
    kept = saved.detach().mT.contiguous()
    kept = kept if _are_often(x, saved) else _find_states(x, bias, kept, reverse, marks)
    after = gh[:, None] if cut.segments == 1 else _returning(x, bias, gy, gh, cut, reverse, marks)
    return _gradients(x, bias, kept, gy, after, cut, reverse, marks, gz)


forward.as_given = backward.as_given = True  # type: ignore[attr-defined]


def fits(x: Inputs) -> bool:
    """Whether the kernels can hold and index this; otherwise it falls back to torch, logged once."""
    if x.u.dtype not in DTYPES:
        raise TypeError(f"selective_scan: the triton backend takes float32 and half types, got {x.u.dtype}.")
    if not x.u.numel():
        return False  # nothing to launch
    l, d = x.u.shape[1:]
    n = x.A.shape[1]
    if n <= MOST_STATES and l * max(d, n) < MOST_NUMBERS:
        return True
    _say_once(n > MOST_STATES)
    return False


@cache
def _say_once(states: bool) -> None:
    what = f"more than {MOST_STATES} states" if states else "2^29 numbers or more in a sequence"
    log.warning("selective_scan: the triton backend does not take %s; these run in torch", what)


# -- the split ---------------------------------------------------------------------------------------------------------


def forward_cut(b: int, l: int, d: int, n: int, save: bool) -> Cut:
    """Two channels per thread, one, then two threads per channel, four: the first that fills the device."""
    np = triton.next_power_of_2(n)
    if np <= 16:
        for bd in (64, 32):
            if b * triton.cdiv(d, bd) >= FULL:
                return Cut(bd, np, 1, 1, 4 if save else 8, 4)
        if np == 16 and b * triton.cdiv(d, 16) >= FULL // 2:  # measured on an H200: a tenth faster than four threads
            return Cut(16, np, 1, 2, 8, 4)
    g = min(np, max(4, np // 8))  # up to eight states per thread
    bd = 32 // g
    return Cut(bd, np, _segments(b * triton.cdiv(d, bd), l), g, 8, 4)


def backward_cut(b: int, l: int, d: int, n: int) -> Cut:
    np = max(4, triton.next_power_of_2(n))
    bd = max(8, 256 // np)
    count = chunks(l)
    segments = _cheapest(b * triton.cdiv(d, bd), count)
    parts = triton.cdiv(4 * FULL, b * max(1, segments - 1) * triton.cdiv(d, _wide(np)))
    parts = min(count // segments, triton.next_power_of_2(parts))
    length = parts * triton.cdiv(count, segments * parts)
    return Cut(bd, np, triton.cdiv(count, length), length=length, parts=parts)


@cache
def _cheapest(programs: int, count: int) -> int:
    """The best number of segments, of at least two chunks, for the backward pass, from times measured on an H200.

    One if that fills the device. Otherwise programs run in rounds of as many as fit at once. A last round that
    leaves every other slot empty takes 0.63 of the time. Finding the entering states of segments takes, per step, a
    quarter of the time of the pass itself.
    """

    def time(segments: int) -> float:
        rounds, rest = divmod(programs * segments, SEATS)
        last = 0.0 if rest == 0 else 0.63 if 2 * rest <= SEATS else 1.0
        return (rounds + last - 0.25 * programs / SEATS) / segments  # less the quarter itself, the same for all

    most = 1 if programs >= FULL else min(triton.cdiv(count, 2), triton.cdiv(4 * SEATS, programs))
    return min(range(1, most + 1), key=time)


def _wide(np: int) -> int:
    """Channels per warp when only states are computed: more than elsewhere, since little else is in registers."""
    return max(1, 512 // np)


def _segments(programs: int, l: int) -> int:
    """One if that fills the device; otherwise as many as fill it, of at least two chunks."""
    if programs >= FULL:
        return 1
    count = chunks(l)
    return triton.cdiv(count, max(2, triton.cdiv(count, max(1, FULL // programs))))


def _shape(x: Inputs, cut: Cut, steps: int) -> dict[str, Any]:
    """Flags that select faster loads if the shapes allow them."""
    l, d = x.u.shape[1:]
    n = x.A.shape[1]
    even = l % steps == 0 and d % cut.bd == 0 and n == cut.np
    pairs = all(t.dtype == torch.bfloat16 and t.stride(1) % 2 == 0 and t.data_ptr() % 4 == 0 for t in (x.B, x.C))
    flags = {"EVEN": even, "WORDS": even and pairs and n >= 2 * cut.g}
    return flags | {"CHUNK": CHUNK, "BD": cut.bd, "STAGES": cut.stages, "num_warps": 1}


# -- launches ----------------------------------------------------------------------------------------------------------


def _walk(
    x: Inputs, bias: Tensor | None, cut: Cut, reverse: bool, marks: Tensor | None, *, y: Tensor, last: Tensor,
    before: Tensor | None = None, quiet: bool = False, **out: Tensor,
) -> None:  # fmt: skip
    """One pass: y, the last states and the saved ones; with `product` the ends of the segments only, `quiet` the saved
    states only."""
    b, l, d = x.u.shape
    ends, saved = "product" in out, out.get("saved")
    quiet = quiet or ends
    every = 0 if saved is None or not saved.shape[1] else TILE if _are_often(x, saved) else CHUNK
    optional = (either(t, x.u) for t in (x.D, x.z, bias, before))
    strides = (t.stride(1) for t in (x.u, x.dt, x.B, x.C, either(x.z, x.u)))
    sizes = (l, d, x.A.shape[1], chunks(l), cut.segments, 1)
    grid = (b * (cut.segments - ends) * triton.cdiv(d, cut.bd),)
    flags = {
        "REVERSE": reverse,
        "SKIP": x.D is not None and not quiet,
        "GATED": x.z is not None and not quiet,
        "RAW": bias is not None,
        "STARTED": before is not None,
        "EVERY": every,
        "QUIET": quiet,
        "PACKED": marks is not None,
    }
    shape = {"T": cut.t, "G": cut.g, "M": cut.np // cut.g, "ENDS": ends, **_shape(x, cut, cut.t)}
    with on_device(x.u):
        forward_kernel[grid](
            *x[:5], *optional, y, last, out.get("product", last), either(saved, last), _words(marks, cut.t),
            *strides, *sizes, **flags, **shape,
        )  # fmt: skip


def _find_states(x: Inputs, bias: Tensor | None, few: Tensor, reverse: bool, marks: Tensor | None) -> Tensor:
    """The state before each tile (b, tiles, d, n), from those before each chunk (b, chunks, d, n)."""
    b, l, d = x.u.shape
    np = triton.next_power_of_2(x.A.shape[1])
    cut = Cut(_wide(np) * 2 if np <= 16 else _wide(np), np, 1, stages=4)
    count = chunks(l)
    length = max(1, min(count, count * b * triton.cdiv(d, cut.bd) // (4 * FULL)))  # chunks per program
    cut = cut._replace(segments=triton.cdiv(count, length))
    found = _states(x)
    before = few[:, :: triton.cdiv(count, cut.segments)].contiguous()
    _walk(x, bias, cut, reverse, marks, before=before, y=few, last=few, quiet=True, saved=found)
    return found


def _returning(
    x: Inputs, bias: Tensor | None, gy: Tensor, gh: Tensor, cut: Cut, reverse: bool, marks: Tensor | None
) -> Tensor:
    """The gradient of the state after each segment, (b, segments, d, n): as carried back by all but the first."""
    b, l, d = x.u.shape
    n, count, short = x.A.shape[1], chunks(l), cut.length // cut.parts
    wide = Cut(_wide(cut.np), cut.np, triton.cdiv(count, short) - cut.parts, stages=4)
    ends, product = _new(x, b, wide.segments, d, n), _new(x, b, wide.segments, d, n)
    z = either(x.z, x.u)
    strides = (t.stride(1) for t in (x.dt, x.C, z, gy))
    with on_device(x.u):
        adjoint_ends_kernel[(b * wide.segments * triton.cdiv(d, wide.bd),)](
            x.dt, x.A, x.C, z, either(bias, z), gy, ends, product, _words(marks, T.value), *strides,
            l, d, n, count, wide.segments, cut.parts, short, 1,
            REVERSE=reverse, GATED=x.z is not None, RAW=bias is not None, PACKED=marks is not None, NP=cut.np,
            **_shape(x, wide, CHUNK),
        )  # fmt: skip
    return _entering(product, ends, gh, cut.parts)


def _gradients(
    x: Inputs, bias: Tensor | None, kept: Tensor, gy: Tensor, after: Tensor, cut: Cut, reverse: bool,
    marks: Tensor | None, gz: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    b, l, d = x.u.shape
    n, blocks, z = x.A.shape[1], triton.cdiv(d, cut.bd), either(x.z, x.u)
    gu, gdt = (torch.empty((b, l, d), dtype=t.dtype, device=t.device) for t in (x.u, x.dt))
    if gz is None and x.z is not None:
        gz = torch.empty_like(gu, dtype=z.dtype)
    gA, gh0 = _new(x, b, cut.segments, d, n), _new(x, b, cut.segments, d, n)
    parts = x.B.new_empty((2, blocks, b, l, n), dtype=torch.promote_types(x.B.dtype, x.C.dtype))  # of B and of C
    sums = _new(x, 2, b, cut.segments, d)  # of D and of the bias
    programs = b * cut.segments * blocks
    strides = (t.stride(1) for t in (x.u, x.dt, x.B, x.C, z, gy, either(gz, gu)))
    with on_device(x.u):
        backward_kernel[(programs,)](
            *x[:5], either(x.D, x.u), z, either(bias, x.u), gy, after, kept,
            gu, gdt, gA, *parts, *sums, either(gz, gu), gh0, _words(marks, T.value), *strides,
            l, d, n, b, chunks(l), cut.segments, cut.length, 1,
            REVERSE=reverse, SKIP=x.D is not None, GATED=x.z is not None, RAW=bias is not None,
            PACKED=marks is not None, NP=cut.np, **_shape(x, cut, CHUNK),
        )  # fmt: skip
    (gB, gC), (gD, gbias) = parts.sum(1), sums.sum((1, 2))
    found = (
        gu,
        gdt,
        gA.sum((0, 1)).to(x.A.dtype),
        gB.to(x.B.dtype),
        gC.to(x.C.dtype),
        None if x.D is None else gD.to(x.D.dtype),
        None if x.z is None else gz,
        None if x.h0 is None else gh0[:, 0].contiguous().to(x.h0.dtype),
    )
    return found if bias is None else (*found, gbias.to(bias.dtype))


def _entering(product: Tensor, ends: Tensor, outer: Tensor | None, parts: int = 0) -> Tensor:
    """The state entering each segment (b, ·, d, n), from each one's own end state and its product of multipliers.

    With `parts` the sequence runs backwards, each group of `parts` segments is merged, and the first is omitted.
    """
    flat = ends.flatten(2)  # (b, segments, d n)
    outer = torch.zeros_like(flat[:, 0]) if outer is None else outer.float().flatten(1)
    after = triton_scan(product.flatten(2), flat, outer, parts > 0)
    shifted = (after[:, ::parts], outer[:, None]) if parts else (outer[:, None], after[:, :-1])
    return torch.cat(shifted, 1).unflatten(2, ends.shape[2:])


# -- memory ------------------------------------------------------------------------------------------------------------


def _dense(t: Tensor) -> Tensor:
    """t as indexed by the kernels: a uniform step stride, also across sequences, and contiguous columns."""
    t = t.detach()
    if t.dim() == 3 and t.stride(2) == 1 and t.stride(0) == t.shape[1] * t.stride(1) and t.stride(1) >= t.shape[2]:
        return t if t.stride(0) < 2**31 else t.contiguous()  # offsets inside a sequence are 32-bit
    return t.contiguous()


def _marks(reset: Tensor | None, reverse: bool) -> Tensor | None:
    """Where the state is reset (b, l), in scan order and padded to whole chunks: bytes (b, chunks CHUNK)."""
    if reset is None:
        return None
    b, l = reset.shape
    marks = torch.zeros((b, chunks(l) * CHUNK), dtype=torch.int8, device=reset.device)
    marks[:, :l] = reset.flip(1) if reverse else reset
    return marks


def _words(marks: Tensor | None, t: int) -> Tensor | None:
    """The marks of t steps as one word."""
    return None if marks is None else marks.view({4: torch.int32, 8: torch.int64}[t])


def _states(x: Inputs) -> Tensor:
    """Memory for the state before each tile, (b, tiles, d, n)."""
    b, l, d = x.u.shape
    dtype = torch.float32 if x.u.dtype == torch.float32 else torch.bfloat16  # with float32's range
    return torch.empty((b, triton.cdiv(l, TILE), d, x.A.shape[1]), dtype=dtype, device=x.u.device)


def _are_often(x: Inputs, saved: Tensor) -> bool:
    """Whether these are the states before each tile; if a sequence is a single tile, they are its chunk's, too."""
    return saved.shape[1] == triton.cdiv(x.u.shape[1], TILE)


def _new(x: Inputs, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.u.device)
