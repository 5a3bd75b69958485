"""Passing states between programs of one launch: chunks of time, held on chip while earlier ones report.

A chunk writes the product of its multipliers and its end state from zero; the last chunk of every `group` writes the
same for the group. The state entering a chunk follows from the groups before its own and from the earlier chunks of
its own group: two accesses to the L2 cache, for any number of chunks, and always joined in the same order, so that
results are deterministic, bit for bit.

There are no flags for finished reports: each is one 64-bit word (or two independent ones), read and written atomically,
and ABSENT, a pair of NaNs that no arithmetic produces, until then. So no memory ordering is needed. A chunk waits
only for earlier ones, and programs draw them in order from a counter: the earliest unfinished chunk is always running.
`Relay` allocates the words, all ABSENT, per launch; in a CUDA graph, the fill is replayed with it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ABSENT = tl.constexpr(-1)  # value of words, and of the counter before the first ticket
NANS = tl.constexpr(0x7FFFFFFF7FFFFFFF)  # replaces a pair of numbers that looks like ABSENT
COUNTER = tl.constexpr(16)  # words before the first report, so that reports are aligned to 128 bytes
AT_ONCE = tl.constexpr(16)  # reports of one channel read together


def draw_words(rows: int, chunks: int, group: int, channels: int, device: torch.device) -> Tensor:
    """The counter, the reports of all chunks, (rows, chunks, channels), and those of all groups after them."""
    reports = rows * (chunks + -(-chunks // group)) * channels
    return torch.full((COUNTER.value + reports,), ABSENT.value, dtype=torch.int64, device=device)


def group_size(chunks: int) -> int:
    """Chunks of a group: about as many as there are groups; all of them if one read is enough."""
    return chunks if chunks <= 2 * AT_ONCE.value else 1 << ((chunks - 1).bit_length() + 1) // 2


@triton.jit
def take_ticket(words: tl.tensor) -> tl.tensor:
    """Draw 0, 1, ...: running programs have the smallest unfinished numbers."""
    return (tl.atomic_add(words, 1, sem="relaxed") + 1).to(tl.int32)


@triton.jit
def pack_word(first: tl.tensor, second: tl.tensor) -> tl.tensor:
    low = first.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    high = second.to(tl.int32, bitcast=True).to(tl.int64) << 32
    word = low | high
    return tl.where(word == ABSENT, NANS, word)


@triton.jit
def open_word(word: tl.tensor) -> tl.tensor:
    return word.to(tl.int32).to(tl.float32, bitcast=True), (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def leave_word(at: tl.tensor, first: tl.tensor, second: tl.tensor, mask: tl.tensor) -> None:
    tl.atomic_xchg(at, pack_word(first, second), mask=mask, sem="relaxed")


@triton.jit
def _count(missing: tl.tensor) -> tl.tensor:
    return tl.max(tl.max(missing.to(tl.int32), 1), 0)


@triton.jit
def await_words(at: tl.tensor, mask: tl.tensor, by: tl.tensor, TWO: tl.constexpr) -> tl.tensor:
    """Words (m, BN), 0 outside the mask, and if TWO those at offset `by`, once all are present."""
    first = tl.load(at, mask=mask, other=0, volatile=True)
    if TWO:
        second = tl.load(at + by, mask=mask, other=0, volatile=True)
        missing = _count((first == ABSENT) | (second == ABSENT))
        while missing > 0:
            first = tl.where(first == ABSENT, tl.load(at, mask=first == ABSENT, other=0, volatile=True), first)
            second = tl.where(second == ABSENT, tl.load(at + by, mask=second == ABSENT, other=0, volatile=True), second)
            missing = _count((first == ABSENT) | (second == ABSENT))
        return first, second
    else:
        missing = _count(first == ABSENT)
        while missing > 0:
            first = tl.where(first == ABSENT, tl.load(at, mask=first == ABSENT, other=0, volatile=True), first)
            missing = _count(first == ABSENT)
        return first, first


@triton.jit
def pick(x: tl.tensor, mark: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """The entries along an axis where `mark` is set; added as integers, so that zeros are free."""
    bits = tl.where(mark, x.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, AXIS).to(tl.float32, bitcast=True)


@triton.jit
def times_real(a, b):  # type: ignore[no-untyped-def]
    """A product of multipliers: zero if one is, even if the other overflows float32."""
    return tl.where((a == 0.0) | (b == 0.0), 0.0, a * b)


@triton.jit
def times_complex(ar, ai, br, bi):  # type: ignore[no-untyped-def]
    none = ((ar == 0.0) & (ai == 0.0)) | ((br == 0.0) & (bi == 0.0))
    return tl.where(none, 0.0, ar * br - ai * bi), tl.where(none, 0.0, ar * bi + ai * br)


@triton.jit
def carry_real(a, h, b):  # type: ignore[no-untyped-def]
    """b + a h for a product a, which keeps a zero state zero even if it overflows float32."""
    return tl.where(h == 0.0, b, a * h + b)


@triton.jit
def carry_complex(ar, ai, hr, hi, br, bi):  # type: ignore[no-untyped-def]
    none = (hr == 0.0) & (hi == 0.0)
    return tl.where(none, br, ar * hr - ai * hi + br), tl.where(none, bi, ar * hi + ai * hr + bi)


@triton.jit
def join_reports_real(a1, b1, a2, b2):  # type: ignore[no-untyped-def]
    """Product and state of two reports in sequence."""
    return times_real(a2, a1), carry_real(a2, b1, b2)


@triton.jit
def join_reports_complex(ar, ai, xr, xi, br, bi, yr, yi):  # type: ignore[no-untyped-def]
    pr, pi = times_complex(br, bi, ar, ai)
    zr, zi = carry_complex(br, bi, xr, xi, yr, yi)
    return pr, pi, zr, zi


@triton.jit
def join_two(ar, ai, xr, xi, br, bi, yr, yi, COMPLEX: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(a, x) then (b, y): complex, or of one or two independent numbers."""
    if COMPLEX:
        pr, pi, zr, zi = join_reports_complex(ar, ai, xr, xi, br, bi, yr, yi)
    else:
        pr, zr = join_reports_real(ar, xr, br, yr)
        pi, zi = pr, zr
        if PAIRS:
            pi, zi = join_reports_real(ai, xi, bi, yi)
    return pr, pi, zr, zi


@triton.jit
def leave_report(at, n, pr, pi, zr, zi, mask, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Product p and state z of (BN,) channels; for complex CONSTANT ones only the state."""
    if COMPLEX:
        leave_word(at, zr, zi, mask)
        if not CONSTANT:
            leave_word(at + n, pr, pi, mask)
    else:
        leave_word(at, pr, zr, mask)
        if PAIRS:
            leave_word(at + n, pi, zi, mask)


@triton.jit
def read_reports(  # type: ignore[no-untyped-def]
    at, n, count, mask, fr, fi, BN: tl.constexpr, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, PAIRS: tl.constexpr
):
    """Product and state of `count` reports from `at` (BN,) on; (1, 0) if there are none.

    f is the product of each if CONSTANT. AT_ONCE at a time, in order.
    """
    WORDS: tl.constexpr = 2 if PAIRS or (COMPLEX and not CONSTANT) else 1
    ONE: tl.constexpr = 0.0 if COMPLEX else 1.0
    pr, pi = tl.full((BN,), 1.0, tl.float32), tl.full((BN,), ONE, tl.float32)
    zr, zi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    m = tl.arange(0, AT_ONCE)
    last = (m == AT_ONCE - 1)[:, None]
    for k in tl.range(0, tl.cdiv(count, AT_ONCE)):
        there = (m + k * AT_ONCE < count)[:, None]
        held = there & mask[None, :]
        place = at[None, :] + (m + k * AT_ONCE)[:, None] * (WORDS * n)  # (AT_ONCE, BN)
        word, other = await_words(place, held, n, WORDS == 2)
        if COMPLEX:
            er, ei = open_word(word)
            if CONSTANT:
                ar, ai = fr[None, :] + tl.zeros_like(er), fi[None, :] + tl.zeros_like(er)
            else:
                ar, ai = open_word(other)
            ar, ai = tl.where(there, ar, 1.0), tl.where(there, ai, 0.0)
            ar, ai, er, ei = tl.associative_scan((ar, ai, er, ei), 0, join_reports_complex)
        else:
            ar, er = open_word(word)
            ar, er = tl.associative_scan((tl.where(there, ar, 1.0), er), 0, join_reports_real)
            ai, ei = ar, er
            if PAIRS:
                ai, ei = open_word(other)
                ai, ei = tl.associative_scan((tl.where(there, ai, 1.0), ei), 0, join_reports_real)
        ar, ai, er, ei = pick(ar, last, 0), pick(ai, last, 0), pick(er, last, 0), pick(ei, last, 0)
        pr, pi, zr, zi = join_two(pr, pi, zr, zi, ar, ai, er, ei, COMPLEX, PAIRS)
    return pr, pi, zr, zi


@triton.jit
def raise_power(ar, ai, COMPLEX: tl.constexpr, TO: tl.constexpr):  # type: ignore[no-untyped-def]
    """a to the power of TO, which is a power of two."""
    size = 1
    while size < TO:
        if COMPLEX:
            ar, ai = ar * ar - ai * ai, 2.0 * ar * ai
        else:
            ar, ai = ar * ar, ai * ai
        size *= 2
    return ar, ai


@triton.jit
def enter_chunk(  # type: ignore[no-untyped-def]
    reports, row, c, rows, chunks, group, n, j, own, last, pr, pi, zr, zi, fr, fi,
    BN: tl.constexpr, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Report product p and state z of chunk c, and return the state that enters it, (BN,); zero for chunk 0.

    p and z are (SIDE, 1, BN), the chunk's are those at `last`. f (BN,) is the product if CONSTANT.
    """
    WORDS: tl.constexpr = 2 if PAIRS or (COMPLEX and not CONSTANT) else 1
    groups = tl.cdiv(chunks, group)
    first = reports + row * chunks * (WORDS * n)
    of_groups = reports + (rows * chunks + row * groups).to(tl.int64) * (WORDS * n)
    g, m = c // group, c % group
    there = last & own[None, None, :]
    spread = j[None, None, :] + tl.zeros(pr.shape, tl.int32)
    leave_report(first + c * (WORDS * n) + spread, n, pr, pi, zr, zi, there, CONSTANT, COMPLEX, PAIRS)
    ar, ai, er, ei = read_reports(
        first + (g * group) * (WORDS * n) + j, n, m, own, fr, fi, BN, CONSTANT, COMPLEX, PAIRS
    )
    if (m == group - 1) & (c < chunks - 1):
        qr, qi, xr, xi = join_two(
            ar[None, None, :], ai[None, None, :], er[None, None, :], ei[None, None, :], pr, pi, zr, zi, COMPLEX, PAIRS
        )
        leave_report(of_groups + g * (WORDS * n) + spread, n, qr, qi, xr, xi, there, CONSTANT, COMPLEX, PAIRS)
    if g > 0:
        if CONSTANT and COMPLEX:
            fr, fi = raise_power(fr, fi, True, group)
        _, _, hr, hi = read_reports(of_groups + j, n, g, own, fr, fi, BN, CONSTANT, COMPLEX, PAIRS)
        _, _, er, ei = join_two(ar, ai, hr, hi, ar, ai, er, ei, COMPLEX, PAIRS)
    return er, ei
