"""The recurrence of `mimo_scan` on a GPU: h_t = lam h_{t-1} + v_t for v (b, l, 2p), re and im interleaved.

A complex number is one word, of two float32 or two bfloat16 numbers; states are float32 in registers, whatever the
memory dtypes. A warp handles 32 recurrences of one sequence, one per thread, over a chunk of steps. Few sequences are
split into chunks that fill the device: a first pass computes each chunk's end state from zero, and a second one joins
those before its own into the entering state, and runs the chunk again.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.linear_scan.triton_kernels import at_end, load_words, scan_tile, store_words
from resolvent.ops.mimo_scan.rows_triton import add_parts
from resolvent.runtime.launch import on_device, quick_jit

ENOUGH = 512  # warps from which sequences are not split
WANTED = 2112  # target if there are fewer: sixteen on each of 132 multiprocessors
SHORTEST = 16  # steps of a chunk
MOST = 256  # most chunks of a sequence, joined by each of them itself
TILE, STAGES = 4, 8  # steps per tile, and prefetched tiles: as in `linear_scan.triton`
JOINED = 8  # chunks at a time


def scan(
    lam: Tensor, v: Tensor, h0: Tensor | None, lengths: Tensor | None, out: Tensor | torch.dtype
) -> tuple[Tensor, Tensor]:
    """h (b, l, 2p) in the dtype `out` and in float32 the state (b, 2p) after each sequence's last step; lam (p, 2).

    If `out` is a tensor (b, l, w), its first 2p columns receive the state before each step.
    """
    return _run(lam, v, (h0, lengths), (None, None), out, back=False)[:2]


def adjoint(
    lam: Tensor, g: Tensor, end: tuple[Any, Any], states: tuple[Any, Any], out: Tensor | torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """γ_t = ‾lam γ_{t+1} + g_t, γ_0 in float32, and ∂lam where `states`, the forward pass's h and h0, are given.

    `end` is the gradient of the state at each sequence's end, or None, and lengths. If `out` is a tensor, it receives γ
    in its first columns, for states before each step: g_t is the gradient of h_{t-1}.
    """
    return _run(lam, g, end, states, out, back=True)


def _run(
    lam: Tensor, v: Tensor, start: tuple[Any, Any], states: tuple[Any, Any], out: Any, back: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    (b, l, s), delayed = v.shape, isinstance(out, Tensor)
    made = out if delayed else torch.empty(v.shape, dtype=out, device=v.device)
    p, bn = s // 2, min(32, triton.next_power_of_2(s // 2))
    warps = b * triton.cdiv(p, bn)
    chunk, chunks = _cut(l, warps)
    shapes = (b, chunks if chunks > 1 else 0, s), (b, s), (b * chunks if states[0] is not None else 0, s)
    left, last, parts = (torch.empty(shape, dtype=torch.float32, device=v.device) for shape in shapes)
    ends, sums = (_words(t) if t.numel() else None for t in (left, parts))
    given = _words(lam), _words(v), ends, _words(start[0]), start[1]
    found = _words(made), _words(last), _words(states[0]), _words(states[1]) if sums is not None else None, sums
    widths = made.shape[-1] // 2, 0 if states[0] is None else states[0].shape[-1] // 2
    with on_device(v):
        for find in (True, False) if chunks > 1 else (False,):
            scan_kernel[(warps * chunks,)](
                *given, *((None,) * 5 if find else found), l, p, *widths, chunk, chunks, 1,
                BACK=back, DELAYED=delayed, FIND=find, LOG=chunk.bit_length() - 1 if chunks > 1 else 0, JOINED=JOINED,
                BT=TILE, BN=bn, STAGES=STAGES, num_warps=1,
            )  # fmt: skip
    return made, last, None if sums is None else add_parts(parts).view(p, 2)


def _cut(l: int, warps: int) -> tuple[int, int]:
    """Steps of a chunk, a power of two, and how many there are; (l, 1) if sequences are not split."""
    wanted = max(SHORTEST, triton.cdiv(l * warps, WANTED), triton.cdiv(l, MOST))
    chunk = triton.next_power_of_2(wanted)
    return (l, 1) if warps >= ENOUGH or chunk >= l else (chunk, triton.cdiv(l, chunk))


def _words(x: Tensor | None) -> Any:
    """Memory as words of two adjacent numbers."""
    if x is None:
        return None
    x = x.contiguous()
    x = x if x.data_ptr() % 8 == 0 else x.clone()
    return x.view(torch.int32 if x.dtype == torch.bfloat16 else torch.int64)


@quick_jit(do_not_specialize=["unit"])
def scan_kernel(  # type: ignore[no-untyped-def]
    LAM, V, ENDS, START, LENGTHS, OUT, END, H, H0, PARTS, l, p, wide, width, chunk, chunks, unit,
    BACK: tl.constexpr, DELAYED: tl.constexpr, FIND: tl.constexpr, LOG: tl.constexpr, JOINED: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """OUT (b, l, wide) the states in words; FIND: only ENDS (b, chunks, p), a chunk's end state from zero.

    START (b, p) is h0, and with BACK the gradient of the state at each sequence's end. END (b, p): the last state, with
    BACK that of step 0. PARTS (b chunks, p) of ∂lam, if H (b, l, width) are the forward pass's states. DELAYED: OUT
    and H have the state before each step, and with BACK V their gradients. chunk is 2^LOG if there are several.

    `unit` is 1, hidden from the compiler: each thread then has all the steps of its own recurrence, and steps
    need no communication between threads (`linear_scan.triton_kernels`).
    """
    blocks = tl.cdiv(p, BN)
    pid = tl.program_id(0)
    j0 = (pid % blocks) * BN
    lane = tl.arange(0, BN)
    j = j0 + lane
    c, row = (pid // blocks) % chunks, (pid // (blocks * chunks)).to(tl.int64)
    live = j < p
    inside = live[:, None]
    lr, li = load_words(LAM + j, live)
    if BACK:
        li = -li
    last = l - 1
    if LENGTHS is not None:
        last = tl.load(LENGTHS + row).to(tl.int32) - 1
    hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    if START is not None:
        xr, xi = load_words(START + row * p + j, live)
        if not BACK and not FIND:
            hr, hi = xr, xi
    if ENDS is not None and not FIND:
        hr, hi = _enter(ENDS + row * chunks * p + j0, hr, hi, lr, li, c, p, unit, inside, LOG, JOINED, BN)
    WAY: tl.constexpr = -1 if BACK else 1
    LATE: tl.constexpr = 1 if DELAYED and BACK else 0  # offset of a step's gradient in V
    NEXT: tl.constexpr = 1 if DELAYED and not BACK else 0  # offset of the state after it in OUT
    i = tl.arange(0, BT)
    across = (lane * unit)[:, None]
    read = across + i[None, :] * (WAY * p)  # (BN, BT)
    V += row * l * p + j0
    if not FIND:
        write = across + i[None, :] * (WAY * wide)
        OUT += row * l * wide + j0
        if NEXT == 1:
            store_words(OUT + lane, hr, hi, live & (c == 0))
    if PARTS is not None:
        beside = across + i[None, :] * (WAY * width)
        H += row * l * width + j0
        sr, si = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
        if H0 is not None:
            br, bi = load_words(H0 + row * p + j, live)
    for k in tl.range(0, tl.cdiv(tl.minimum(chunk, l - c * chunk), BT), num_stages=STAGES):
        t0 = l - 1 - c * chunk - k * BT if BACK else c * chunk + k * BT
        t = (t0 + WAY * i)[None, :]
        there = (t >= 0) & (t < l)
        base = t0.to(tl.int64)
        vr, vi = load_words(V + (base + LATE) * p + read, there & (t + LATE < l) & inside)
        if START is not None and BACK:
            vr += tl.where(t == last, xr[:, None], 0.0)
            vi += tl.where(t == last, xi[:, None], 0.0)
        ar = tl.where(there & inside, lr[:, None], 1.0)  # after the last step the state is kept
        ai = tl.where(there & inside, li[:, None], 0.0)
        yr, yi, hr, hi = _walk(ar, ai, vr, vi, hr, hi, BT)
        if not FIND:
            store_words(OUT + (base + NEXT) * wide + write, yr, yi, there & (t + NEXT < l) & inside)
            if LENGTHS is not None and not BACK:
                store_words(END + (row * p + j)[:, None] + t * 0, yr, yi, (t == last) & inside)
        if PARTS is not None:
            if DELAYED:
                gr, gi = load_words(H + base * width + beside, there & inside)
            else:
                gr, gi = load_words(H + (base - 1) * width + beside, there & (t > 0) & inside)
                if H0 is not None:
                    gr = tl.where(t == 0, br[:, None], gr)
                    gi = tl.where(t == 0, bi[:, None], gi)
            sr += tl.sum(yr * gr + yi * gi, 1)
            si += tl.sum(yi * gr - yr * gi, 1)
    here = (row * chunks + c) * p + j
    if FIND:
        store_words(ENDS + here, hr, hi, live)
    elif LENGTHS is None or BACK:
        store_words(END + row * p + j, hr, hi, live & (c == chunks - 1))
    if PARTS is not None:
        store_words(PARTS + here, sr, si, live)


@triton.jit
def _walk(ar, ai, vr, vi, hr, hi, BT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The states after each step of a tile (BN, BT) from the initial state h (BN,), and the last of them."""
    i = tl.arange(0, BT)[None, :]
    _, _, yr, yi = scan_tile(ar, ai, vr, vi, hr, hi, i == 0, True, False, False)
    return yr, yi, at_end(yr, i == BT - 1), at_end(yi, i == BT - 1)


@triton.jit
def _enter(  # type: ignore[no-untyped-def]
    ENDS, hr, hi, lr, li, c, p, unit, inside, LOG: tl.constexpr, JOINED: tl.constexpr, BN: tl.constexpr
):
    """The state that enters chunk c, from the first one's initial state and the end states of those before c."""
    for _squared in tl.static_range(LOG):
        lr, li = lr * lr - li * li, 2.0 * lr * li
    m = tl.arange(0, JOINED)
    at = (tl.arange(0, BN) * unit)[:, None] + m[None, :] * p
    for k in tl.range(0, tl.cdiv(c, JOINED), num_stages=3):
        held = (k * JOINED + m < c)[None, :] & inside
        er, ei = load_words(ENDS + k * JOINED * p + at, held)
        ar, ai = tl.where(held, lr[:, None], 1.0), tl.where(held, li[:, None], 0.0)
        _, _, hr, hi = _walk(ar, ai, er, ei, hr, hi, JOINED)
    return hr, hi
