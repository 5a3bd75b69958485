"""Tiles of steps for the selective scan's Triton kernels: loaded whole, split into steps, joined again.

A tile spreads over all the threads of a program, so that loads are wide and prefetched several rounds ahead, and values
per step and channel are computed once. The recurrence needs one step at a time, known to every thread with states of
the channel: `rows` splits a tile, and the compiler exchanges the numbers through shared memory.
"""
# Triton's language has no unpacking into tuples.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(float("-inf"))  # whose softplus is a zero step
KEPT, STREAMED = tl.constexpr(""), tl.constexpr(".cs")  # kept in cache, or evicted first


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """The square of a reciprocal root: one instruction of the special unit where a division is ten."""
    root = tl.rsqrt(1.0 + tl.exp2(-x * LOG2E))
    return root * root


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x)), to single precision at any size: log(1 + e) = 2 artanh(e / (2 + e)), by its series."""
    e = tl.exp2(-tl.abs(x) * LOG2E)
    root = tl.rsqrt(2.0 + e)
    s = e * root * root  # e / (2 + e), at most 1/3
    q = s * s
    series = 1.0 + q * (0.33333333 + q * (0.2 + q * (0.14285714 + q * (0.11111111 + q * 0.090909091))))
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def once(x: tl.tensor) -> tl.tensor:
    """x, computed only once; the compiler would otherwise recompute it in another layout instead of exchanging it.

    It does not repeat sums, so this is a sum: x + 0.
    """
    return tl.sum(tl.join(x, tl.zeros_like(x)), 2)


@triton.jit
def each_channel(x: tl.tensor, k: tl.tensor, inside: tl.tensor, THERE: tl.constexpr) -> tl.tensor:
    """x (d,) at columns k: (columns, 1), or zeros if not THERE."""
    return tl.load(x + k, mask=inside & THERE, other=0.0).to(tl.float32)[:, None]


@triton.jit
def tile(  # type: ignore[no-untyped-def]
    x, stride, i, l, k, inside, T: tl.constexpr, REVERSE: tl.constexpr, EVEN: tl.constexpr, BEYOND: tl.constexpr = 0.0,
):  # fmt: skip
    """Steps i, ..., i + T - 1 of x (l, ·) at columns k, in scan order: (columns, T).

    Zeros beyond either end, unless EVEN: a step of zeros, including dt = 0, changes nothing.
    """
    q = tl.arange(0, T)
    t = l - 1 - i - q if REVERSE else i + q
    at = x + (t[None, :] * stride + k[:, None])
    if EVEN:
        return tl.load(at)
    return tl.load(at, mask=inside[:, None] & (i + q < l)[None, :], other=BEYOND)


@triton.jit
def step_sizes(
    dt: tl.tensor, stride: tl.tensor, bias: tl.tensor, i: tl.tensor, l: tl.tensor, k: tl.tensor, inside: tl.tensor,
    T: tl.constexpr, REVERSE: tl.constexpr, EVEN: tl.constexpr, RAW: tl.constexpr, SHARED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A tile of dt and its derivative: unchanged, or RAW, softplus(dt + bias) with bias (columns, 1).

    SHARED: several threads need each number, which is then computed by one of them.
    """
    if RAW:
        x = tile(dt, stride, i, l, k, inside, T, REVERSE, EVEN, NEVER).to(tl.float32) + bias
        size = softplus(x)
        found = (once(size) if SHARED else size), sigmoid(x)
    else:
        found = tile(dt, stride, i, l, k, inside, T, REVERSE, EVEN).to(tl.float32), bias
    return found


@triton.jit
def put(  # type: ignore[no-untyped-def]
    x, stride, values, i, l, width, k, T: tl.constexpr, REVERSE: tl.constexpr, EVEN: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Write (columns, T) to steps i, ..., i + T - 1, `stride` apart, of x (l, width). CACHE: KEPT or STREAMED."""
    q = tl.arange(0, T)
    t = l - 1 - i - q if REVERSE else i + q
    at = x + (t[None, :] * stride + k[:, None])
    if EVEN:
        tl.store(at, values.to(x.dtype.element_ty), cache_modifier=CACHE)
    else:
        inside = (k < width)[:, None] & (i + q < l)[None, :]
        tl.store(at, values.to(x.dtype.element_ty), mask=inside, cache_modifier=CACHE)


@triton.jit
def forgets(mark: tl.tensor, q: tl.constexpr) -> tl.tensor:
    """Whether the state is reset before step q of a tile, from its word of marks, one byte per step."""
    return (mark >> (8 * q)) & 1 != 0


@triton.jit
def widen(x: tl.tensor) -> tl.tensor:
    """float32 from loaded numbers, or from 32-bit words (n/2, T) of two bfloat16 numbers each.

    Unpacking takes one instruction per number.
    """
    if x.dtype == tl.int32:
        low = (x << 16).to(tl.float32, bitcast=True)
        high = (x & -65536).to(tl.float32, bitcast=True)
        pairs = tl.permute(tl.join(low, high), (0, 2, 1))  # (n/2, 2, T)
        wide = tl.reshape(pairs, (2 * x.shape[0], x.shape[1]))
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def rows(x: tl.tensor) -> tl.tensor:
    """The four or eight columns of a tile, each a vector."""
    if x.shape[1] == 8:
        x0246, x1357 = tl.split(tl.reshape(x, (x.shape[0], 2, 2, 2)))
        x04, x26 = tl.split(x0246)
        x15, x37 = tl.split(x1357)
        x0, x4 = tl.split(x04)
        x2, x6 = tl.split(x26)
        x1, x5 = tl.split(x15)
        x3, x7 = tl.split(x37)
        steps = (x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        x02, x13 = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
        x0, x2 = tl.split(x02)
        x1, x3 = tl.split(x13)
        steps = (x0, x1, x2, x3)
    return steps


@triton.jit
def rows_of_three(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tensor:
    """The four columns of three tiles, each a vector; computed once, and exchanged together, 16 bytes at a time."""
    x = tl.join(tl.join(a, b), tl.join(c, c))  # (columns, 4, 2, 2)
    x = tl.sum(tl.join(x, tl.zeros_like(x)), 4)  # as in `once`
    x02, x13 = tl.split(tl.permute(tl.reshape(x, (a.shape[0], 2, 2, 2, 2)), (0, 3, 4, 1, 2)))
    x0, x2 = tl.split(x02)
    x1, x3 = tl.split(x13)
    steps = (x0, x1, x2, x3)
    first, second, third = (), (), ()
    for q in tl.static_range(4):
        pair, rest = tl.split(steps[q])
        one, two = tl.split(pair)
        three, _ = tl.split(rest)
        first, second, third = first + (one,), second + (two,), third + (three,)
    return (first, second, third)


@triton.jit
def halves(x: tl.tensor) -> tl.tensor:
    """A tile (columns, 8) as two of four steps: two sums folded together."""
    first, second = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, 4)), (0, 2, 1)))
    return (first, second)


@triton.jit
def fold(steps: tl.tensor) -> tl.tensor:
    """Four or eight (columns, G) summed over G: a tile (columns, T).

    If threads share G, they exchange through shared memory once for all steps, instead of a reduction per step.
    """
    if len(steps) == 8:
        x0246 = tl.join(tl.join(steps[0], steps[4]), tl.join(steps[2], steps[6]))
        x1357 = tl.join(tl.join(steps[1], steps[5]), tl.join(steps[3], steps[7]))
        x = tl.permute(tl.join(x0246, x1357), (0, 2, 3, 4, 1))  # (columns, 2, 2, 2, G)
    else:
        x = tl.join(tl.join(steps[0], steps[2]), tl.join(steps[1], steps[3]))
        x = tl.permute(x, (0, 2, 3, 1))  # (columns, 2, 2, G)
    G: tl.constexpr = steps[0].shape[1]
    columns: tl.constexpr = steps[0].shape[0]
    if G == 1:
        total = tl.reshape(x, (columns, len(steps)))
    elif G == 2:
        a, b = tl.split(tl.reshape(x, (columns, len(steps), 2)))
        total = a + b
    elif G == 4:
        a, b = tl.split(tl.reshape(x, (columns, len(steps), 2, 2)))
        c, e = tl.split(a + b)
        total = c + e
    elif G == 8:
        a, b = tl.split(tl.reshape(x, (columns, len(steps), 2, 2, 2)))
        c, e = tl.split(a + b)
        f, g = tl.split(c + e)
        total = f + g
    else:
        total = tl.sum(tl.reshape(x, (columns, len(steps), G)), 2)
    return total
