"""`gating` as one Triton kernel in each direction: some columns of one channel to a program.

A channel's columns, its steps in all sequences, lie side by side. Sums over them, the biases' gradients, leave one
number per program, so that adding them up gives the same bits every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import on_device

KINDS = {"biased_silu": 0, "open_gates": 1, "blend": 2}
COLUMNS = 2048  # to a program


def forward(name: str, inputs: tuple[Tensor, ...]) -> Tensor:
    full = [t.contiguous() for t in inputs if t.dim() == 3]
    biases = [t for t in inputs if t.dim() == 1]
    out = torch.empty_like(full[0])
    c, m = out.shape[0], out[0].numel()
    with on_device(out):
        forward_kernel[(triton.cdiv(m, COLUMNS), c)](
            *_four(full), biases[0], biases[-1], out, m, KIND=KINDS[name], BM=COLUMNS, num_warps=8
        )
    return out


def backward(name: str, g: Tensor, inputs: tuple[Tensor, ...], learn: bool) -> tuple[Tensor | None, ...]:
    """One gradient per input; those of biases with `learn` only."""
    full = [t.contiguous() for t in inputs if t.dim() == 3]
    biases = [t for t in inputs if t.dim() == 1]
    g = g.contiguous()
    found = [torch.empty_like(t) for t in (full[:2] + full[3:] if name == "blend" else full)]
    c, m = g.shape[0], g[0].numel()
    tiles = triton.cdiv(m, COLUMNS)
    sums = torch.empty((2, c, tiles), dtype=torch.float32, device=g.device) if learn else None
    with on_device(g):
        backward_kernel[(tiles, c)](
            g, *_four(full), biases[0], biases[-1], found[0], found[min(1, len(found) - 1)], found[-1],
            g if sums is None else sums, m, KIND=KINDS[name], LEARN=learn, BM=COLUMNS, num_warps=8,
        )  # fmt: skip
    if name == "blend":  # h and w stand in one sum
        found = [found[0], found[1], found[1], found[2]]
    rows = [None] * len(biases) if sums is None else sums.sum(2)[: len(biases)].unbind(0)
    return *found, *(None if r is None else r.to(t.dtype) for r, t in zip(rows, biases, strict=True))


def _four(full: list[Tensor]) -> list[Tensor]:
    return [*full, *([full[0]] * (4 - len(full)))]


@triton.jit
def _slope(x, share):  # type: ignore[no-untyped-def]
    """silu'(x), share = sigmoid(x)."""
    return share * (1 + x * (1 - share))


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    P, Q, R, S, BIAS, BIAS2, OUT, m, KIND: tl.constexpr, BM: tl.constexpr
):
    """P, Q, R, S are the inputs in their order: x; r, o; or u, h, w, x."""
    c = tl.program_id(1)
    cols = tl.program_id(0) * BM + tl.arange(0, BM)
    live = cols < m
    at = c.to(tl.int64) * m + cols
    p = tl.load(P + at, mask=live, other=0.0).to(tl.float32) + tl.load(BIAS + c).to(tl.float32)
    y = p * tl.sigmoid(p)
    if KIND == 1:
        y *= tl.load(Q + at, mask=live, other=0.0).to(tl.float32)
    if KIND == 2:
        h = tl.load(Q + at, mask=live, other=0.0).to(tl.float32) + tl.load(R + at, mask=live, other=0.0).to(tl.float32)
        h += tl.load(BIAS2 + c).to(tl.float32)
        x = tl.load(S + at, mask=live, other=0.0).to(tl.float32)
        y = tl.sigmoid(p) * (h * tl.sigmoid(h) - x)
    tl.store(OUT + at, y.to(OUT.dtype.element_ty), mask=live)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, P, Q, R, S, BIAS, BIAS2, GP, GQ, GS, SUMS, m, KIND: tl.constexpr, LEARN: tl.constexpr, BM: tl.constexpr
):
    """GP, GQ, GS: gradients of the first input, of the second (h + w where blended) and of x."""
    c = tl.program_id(1)
    cols = tl.program_id(0) * BM + tl.arange(0, BM)
    live = cols < m
    at = c.to(tl.int64) * m + cols
    g = tl.load(G + at, mask=live, other=0.0).to(tl.float32)
    p = tl.load(P + at, mask=live, other=0.0).to(tl.float32) + tl.load(BIAS + c).to(tl.float32)
    share = tl.sigmoid(p)
    if KIND == 0:
        gp = g * _slope(p, share)
    if KIND == 1:
        gp = g * _slope(p, share) * tl.load(Q + at, mask=live, other=0.0).to(tl.float32)
        tl.store(GQ + at, (g * p * share).to(GQ.dtype.element_ty), mask=live)
    if KIND == 2:
        h = tl.load(Q + at, mask=live, other=0.0).to(tl.float32) + tl.load(R + at, mask=live, other=0.0).to(tl.float32)
        h += tl.load(BIAS2 + c).to(tl.float32)
        x = tl.load(S + at, mask=live, other=0.0).to(tl.float32)
        own = tl.sigmoid(h)
        gp = g * (h * own - x) * share * (1 - share)
        gh = g * share * _slope(h, own)
        tl.store(GQ + at, gh.to(GQ.dtype.element_ty), mask=live)
        tl.store(GS + at, (-g * share).to(GS.dtype.element_ty), mask=live)
    tl.store(GP + at, gp.to(GP.dtype.element_ty), mask=live)
    if LEARN:
        place = SUMS + c * tl.num_programs(0) + tl.program_id(0)
        tl.store(place, tl.sum(tl.where(live, gp, 0.0), 0))
        if KIND == 2:
            tl.store(place + tl.num_programs(1) * tl.num_programs(0), tl.sum(tl.where(live, gh, 0.0), 0))
