"""The selective scan's backward pass in Triton: states from the saved ones, every gradient in one loop.

With g_t the gradient of C_t·h_t + D u_t, the state's gradient runs backwards and all others follow from it:

    λ_t = C_t g_t + ā_{t+1} λ_{t+1}        m_t = λ_t ∘ ā_t ∘ h_{t-1}        ā_t = exp(dt_t A)
    ∂A = Σ_t dt_t m_t    ∂dt_t = Σ_n A m_t + u_t Σ_n λ_t B_t    ∂u_t = dt_t Σ_n λ_t B_t + D g_t
    ∂B_t = Σ_d λ_t dt_t u_t    ∂C_t = Σ_d h_t g_t

A program is one warp; it loops backwards over the tiles of T steps of BD channels of one segment. The state before
each tile is read from memory, and gives T states and multipliers in registers, each computed once. ∂B and ∂C
are one part per block of channels, added afterwards in a fixed order.
"""
# Triton's language has no unpacking into tuples.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

import triton.language as tl

from resolvent.ops.selective_scan.inputs import TILE
from resolvent.ops.selective_scan.triton_tiles import (
    LN2,
    LOG2E,
    STREAMED,
    each_channel,
    fold,
    forgets,
    halves,
    put,
    rows,
    rows_of_three,
    sigmoid,
    step_sizes,
    tile,
    widen,
)
from resolvent.runtime.launch import quick_jit

T = tl.constexpr(TILE)  # steps in a tile: as many states and multipliers as fit in registers


@quick_jit(do_not_specialize=["unit"])
def adjoint_ends_kernel(  # type: ignore[no-untyped-def]
    dt, A, C, z, bias, gy, ends, product, marks, sdt, sC, sz, sgy, l, d, n, chunks, segments, skipped, length, unit,
    REVERSE: tl.constexpr, GATED: tl.constexpr, RAW: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    WORDS: tl.constexpr, CHUNK: tl.constexpr, BD: tl.constexpr, NP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient carried back by each segment alone, ā λ of its first step, and the product of its multipliers.

    Both (b, segments, d, n). A segment has `length` chunks; the first starts after `skipped` times as many. PACKED:
    `marks` are those of the forward pass, RAW and `bias` likewise.
    """
    blocks = tl.cdiv(d, BD)
    pid = tl.program_id(0)
    j = (pid % blocks) * BD + tl.arange(0, BD)  # (BD,)
    part = (pid // blocks).to(tl.int64)
    row, segment = part // segments, (part % segments).to(tl.int32)
    s = tl.arange(0, NP)
    channel = j < d
    both = channel[:, None] & (s < n)[None, :]
    states = (j * n)[:, None] + (s * unit)[None, :]  # (BD, NP)
    rate = tl.load(A + states, mask=both, other=0.0).to(tl.float32) * LOG2E
    carry = tl.zeros((BD, NP), tl.float32)
    total = tl.zeros((BD, T), tl.float32)
    shift = each_channel(bias, j, channel, RAW)
    dt += row * l * sdt
    z += row * l * sz
    gy += row * l * sgy
    C += row * l * sC
    k = s
    if WORDS:
        C, sC = C.to(tl.pointer_type(tl.int32), bitcast=True), sC // 2
        k = tl.arange(0, NP // 2)
    if PACKED:
        marks += row * chunks * (CHUNK // T)
        seen = tl.zeros((), marks.dtype.element_ty)
    low = (segment + skipped) * length * CHUNK
    high = tl.minimum(low + length * CHUNK, chunks * CHUNK)
    for back in tl.range(low, high, T, num_stages=STAGES):
        i = high - T - (back - low)
        size, _ = step_sizes(dt, sdt, shift, i, l, j, channel, T, REVERSE, EVEN, RAW, False)
        Cs = rows(widen(tile(C, sC, i, l, k, k < n, T, REVERSE, EVEN)))
        g = tile(gy, sgy, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
        if GATED:
            gate = tile(z, sz, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
            g *= gate * sigmoid(gate)
        if PACKED:
            mark = tl.load(marks + i // T)
            seen |= mark
        sizes, gs = rows(size), rows(g)
        for q in tl.static_range(T - 1, -1, -1):
            carry = tl.exp2(sizes[q][:, None] * rate) * (carry + gs[q][:, None] * Cs[q][None, :])
            if PACKED:
                carry = tl.where(forgets(mark, q), 0.0, carry)
        total += size
    tl.store(ends + part * d * n + states, carry, mask=both)
    if PACKED:
        across = tl.where(seen == 0, tl.exp2(tl.sum(total, 1)[:, None] * rate), 0.0)
        tl.store(product + part * d * n + states, across, mask=both)
    else:
        tl.store(product + part * d * n + states, tl.exp2(tl.sum(total, 1)[:, None] * rate), mask=both)


@quick_jit(do_not_specialize=["unit"])
def backward_kernel(  # type: ignore[no-untyped-def]
    u, dt, A, B, C, D, z, bias, gy, gh, kept, gu, gdt, gA, gB, gC, gD, gbias, gz, gh0, marks, su, sdt, sB, sC, sz, sgy,
    sgz, l, d, n, count, chunks, segments, length, unit, REVERSE: tl.constexpr, SKIP: tl.constexpr, GATED: tl.constexpr,
    RAW: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, WORDS: tl.constexpr, CHUNK: tl.constexpr,
    BD: tl.constexpr, NP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """kept (b, steps / T, d, n): the state before each tile; gh, gh0, gA (b, segments, d, n): the gradient of the state
    after, before, and of A in each segment of `length` chunks; gD and gbias likewise (b, segments, d); gB, gC
    (blocks, b, l, n); count is b. PACKED: `marks` are those of the forward pass. RAW: the step is softplus(dt + bias),
    gdt the gradient of that dt. `unit` is 1, hidden from the compiler: no thread then has more than four states
    of a channel, and each has two channels.
    """
    blocks = tl.cdiv(d, BD)
    pid = tl.program_id(0)
    block = pid % blocks
    j = block * BD + tl.arange(0, BD)  # (BD,)
    part = (pid // blocks).to(tl.int64)
    row, segment = part // segments, (part % segments).to(tl.int32)
    s = tl.arange(0, NP)
    states = j[:, None] * n + s[None, :]  # (BD, NP)
    fours = j[:, None] * n + ((s // 4) * (4 * unit) + s % 4)[None, :]
    channel = j < d
    both = channel[:, None] & (s < n)[None, :]
    rate = tl.load(A + states, mask=both, other=0.0).to(tl.float32) * LOG2E
    carry = tl.load(gh + part * d * n + states, mask=both, other=0.0)
    of_A = tl.zeros((BD, NP), tl.float32)
    of_D = tl.zeros((BD, T), tl.float32)
    of_bias = tl.zeros((BD, T), tl.float32)
    skip, shift = each_channel(D, j, channel, SKIP), each_channel(bias, j, channel, RAW)
    kept += row * tl.cdiv(l, T) * d * n
    u += row * l * su
    dt += row * l * sdt
    z += row * l * sz
    gy += row * l * sgy
    B += row * l * sB
    C += row * l * sC
    gu += row * l * d
    gdt += row * l * d
    gz += row * l * sgz
    gB += (block.to(tl.int64) * count + row) * l * n
    gC += (block.to(tl.int64) * count + row) * l * n
    k = s
    if WORDS:
        B, C = B.to(tl.pointer_type(tl.int32), bitcast=True), C.to(tl.pointer_type(tl.int32), bitcast=True)
        sB, sC = sB // 2, sC // 2
        k = tl.arange(0, NP // 2)
    if PACKED:
        marks += row * chunks * (CHUNK // T)
    low, high = segment * length, tl.minimum(segment * length + length, chunks)
    for back in tl.range(0, (high - low) * CHUNK, T, num_stages=STAGES):
        i = high * CHUNK - T - back
        before = kept + (i // T).to(tl.int64) * d * n + fours
        h = (tl.load(before) if EVEN else tl.load(before, mask=both & (i < l), other=0.0)).to(tl.float32)
        x = tile(u, su, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
        size, soft = step_sizes(dt, sdt, shift, i, l, j, channel, T, REVERSE, EVEN, RAW, False)
        g = tile(gy, sgy, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
        if GATED:
            gate = tile(z, sz, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
            share = sigmoid(gate)
            slope = g * share * (1.0 + gate * (1.0 - share))
            g *= gate * share
        Bs = rows(widen(tile(B, sB, i, l, k, k < n, T, REVERSE, EVEN)))
        Cs = rows(widen(tile(C, sC, i, l, k, k < n, T, REVERSE, EVEN)))
        if PACKED:
            mark = tl.load(marks + i // T)
        sizes, drives, gs = rows_of_three(size, size * x, g)
        hs, bars, reads, of_Cs = (), (), (), ()
        for q in tl.static_range(T):
            bar = tl.exp2(sizes[q][:, None] * rate)
            if PACKED:
                h = tl.where(forgets(mark, q), 0.0, h)
            hs = hs + (h,)
            h = bar * h + drives[q][:, None] * Bs[q][None, :]
            bars = bars + (bar,)
            if GATED:
                reads = reads + (tl.sum(tl.reshape(h * Cs[q][None, :], (BD, 4, NP // 4)), 2),)
            of_Cs = of_Cs + (tl.trans(tl.sum(tl.reshape(h * gs[q][:, None], (BD // 8, 8, NP)), 0)),)
        if GATED:
            v = fold(reads)
            if SKIP:
                v += skip * x
            put(gz, sgz, slope * v, i, l, d, j, T, REVERSE, EVEN, STREAMED)
        drawn, slopes, of_Bs = (), (), ()
        for q in tl.static_range(T - 1, -1, -1):
            lam = carry + gs[q][:, None] * Cs[q][None, :]
            carry = lam * bars[q]
            if PACKED:
                carry = tl.where(forgets(mark, q), 0.0, carry)
            through = carry * hs[q]
            of_A += through * sizes[q][:, None]
            drawn = (tl.sum(tl.reshape(lam * Bs[q][None, :], (BD, 4, NP // 4)), 2),) + drawn
            slopes = (tl.sum(tl.reshape(through * rate, (BD, 4, NP // 4)), 2),) + slopes
            of_Bs = (tl.trans(tl.sum(tl.reshape(lam * drives[q][:, None], (BD // 8, 8, NP)), 0)),) + of_Bs
        of_B, of_C = halves(fold(of_Bs + of_Cs))
        put(gB, n, of_B, i, l, n, s, T, REVERSE, EVEN, STREAMED)
        put(gC, n, of_C, i, l, n, s, T, REVERSE, EVEN, STREAMED)
        of_drive, of_size = halves(fold(drawn + slopes))
        of_u = of_drive * size
        if SKIP:
            of_u += g * skip
            of_D += g * x
        put(gu, d, of_u, i, l, d, j, T, REVERSE, EVEN, STREAMED)
        of_dt = of_size * LN2 + of_drive * x
        if RAW:
            of_dt *= soft
            of_bias += of_dt
        put(gdt, d, of_dt, i, l, d, j, T, REVERSE, EVEN, STREAMED)
    tl.store(gh0 + part * d * n + states, carry, mask=both)
    tl.store(gA + part * d * n + states, of_A, mask=both)
    if SKIP:
        tl.store(gD + part * d + j, tl.sum(of_D, 1), mask=channel)
    if RAW:
        tl.store(gbias + part * d + j, tl.sum(of_bias, 1), mask=channel)
