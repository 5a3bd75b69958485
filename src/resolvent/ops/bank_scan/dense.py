"""The pass of `bank_scan` for a bank of dense systems, S4's; its tables come from `ops.modes.dense`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.ops.bank_scan.operation import CLOSE, STEPS, choose_steps, load_kernels
from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked.operation import Blocks
from resolvent.ops.blocked.tables import DenseBank, dense_blocks
from resolvent.ops.modes.dense import flat_blocks, form_blocks
from resolvent.runtime import chip
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
from resolvent.runtime.transforms import (
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
)

ROOM = 160  # KiB of a program with a matrix of 128 reals, as reported by the compiler


def has_room(like: Tensor, s: int) -> bool:
    """Whether a program on `like`'s device can hold the matrix of s reals (128: as two parts, for three products)."""
    return s <= 64 or (s <= 128 and chip.capacity(like) >= ROOM)


def serves_dense(x: Tensor, h0: Tensor | None, s: int) -> bool:
    """Whether the kernels support this pass."""
    if not (x.is_cuda and x.dtype == torch.float32 and x.numel() and has_room(x, s) and is_untransformed()):
        return False
    if is_traced(x, h0) or (h0 is not None and x.shape[1] % STEPS[-1]):
        return False
    return choose("dense_bank_scan", CANDIDATES, x.device, x.dtype) is not nothing


class Making(NamedTuple):
    """How the tables of a pass are made from tensors, which receive gradients."""

    make: Callable[[Sequence[Tensor]], Any]  # the kernels' tables
    slopes: Callable[[Sequence[Tensor], Tensor], Sequence[Tensor | None]]  # from the product that the kernels give
    plain: Callable[[Sequence[Tensor]], Sequence[Tensor]]  # `flat_blocks` in torch operations


def dense_bank_scan(
    blocks: Blocks, x: Tensor, h0: Tensor | None, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """y (b, l, d), zero beyond `lengths`, and the state (b, d, s) at each sequence's end; tables of T steps."""
    making = Making(lambda flat: _join(flat, dtype), _split, lambda flat: flat)
    return run_scan(making, None, x, h0, lengths, flat_blocks(blocks, copy=False))


def run_scan(
    making: Making, tables: Any, x: Tensor, h0: Tensor | None, lengths: Tensor | None, own: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The same from given tables, or tables made from `own`."""
    lengths = None if lengths is None else lengths.to(x.device)
    h0 = None if h0 is None else h0.contiguous()
    y, end = _DenseBankScan.apply(making, tables, lengths, x, h0, *own)
    return y, end


def steps_of(x: Tensor, h0: Tensor | None) -> int:
    """T of the tables of a pass."""
    return choose_steps(x.shape[1], h0 is not None)


def run_by_torch(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, differentiable to every order."""
    padding = None if lengths is None else (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]
    u = x if padding is None else x.masked_fill(padding, 0)
    y, end = blocked.run(form_blocks(list(tables)), u, h0, lengths, by_hand=False)
    return y if padding is None else y.masked_fill(padding, 0), end


class _DenseBankScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, making: Making, tables: Any, lengths: Tensor | None, x: Tensor, h0: Tensor | None, *own: Tensor
    ) -> tuple[Tensor, Tensor]:
        tables = making.make(own) if tables is None else tables
        y, end, kept = load_kernels().run(tables, x, h0, lengths)
        learn = any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(x, h0, lengths, *tables[:3], kept.rows if learn else None, *own)
        ctx.set_materialize_grads(False)
        ctx.making = making
        return y, end

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        x, h0, lengths, ahead, back, whole, rows, *own = ctx.saved_tensors
        making, kernels = ctx.making, load_kernels()
        if by_graph_only(*gradients):
            run = lambda x, h0, *own: run_by_torch(making.plain(own), x, h0, lengths)  # noqa: E731
            return *(None,) * 3, *gradients_by_graph(run, (x, h0, *own), gradients, ctx.needs_input_grad[3:])
        tables, kept = kernels.Tables(ahead, back, whole, True), kernels.Rows(rows, lengths, x.shape)
        gy = torch.zeros_like(x) if gradients[0] is None else gradients[0]
        g_end = None if gradients[1] is None else gradients[1].contiguous()
        gx, g_h0, found = kernels.gradients(tables, kept, gy, g_end, start=ctx.needs_input_grad[4])
        slopes = (None,) * len(own) if found is None else making.slopes(own, found[0])
        return None, None, None, gx, g_h0, *slopes


def _split(flat: Sequence[Tensor], product: Tensor) -> list[Tensor | None]:
    """The gradients of Toeplitz, M_in, M_out and A^T, from (u | h)' (∂y | γ)."""
    T = flat[0].shape[1]
    own = product[:, :T, :T], product[:, :T, T:], product[:, T:, :T].mT
    return [*own, *(None,) * (len(flat) - 4), product[:, T:, T:]]


def _join(flat: Sequence[Tensor], dtype: torch.dtype) -> Any:
    toeplitz, M_in, M_out, *_, whole = flat
    ahead, back = (torch.cat(pair, 2).to(dtype) for pair in ((toeplitz.mT, M_out), (toeplitz, M_in)))
    return load_kernels().Tables(ahead, back, whole, True)


# -- where the kernels run ---------------------------------------------------------------------------------------------


def example(device: torch.device) -> list[Tensor]:
    """A, B, C and D of three channels of five states, in float64."""
    wave = torch.sin(torch.arange(105, device=device, dtype=torch.float64) ** 1.5)
    return [0.3 * wave[:75].view(3, 5, 5), wave[75:90].view(3, 5), wave[90:105].view(3, 5), wave[:3]]


def make_tables(bank: Sequence[Tensor], T: int) -> list[Tensor]:
    """The tables of `ops.modes.dense`, from A, B, C and D."""
    return flat_blocks(dense_blocks(DenseBank(*bank), T, bank[0].dtype))


def agrees(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether values and gradients of a short pass, with lengths, are those of `run_by_torch`.

    Sequences are aligned differently in blocks, so gradients agree for the bank, not for its tables.
    """
    T, lengths = STEPS[-1], torch.tensor([37, 21], device=device)
    x = torch.sin(torch.arange(222, device=device, dtype=torch.float64) ** 1.3).view(2, 37, 3)
    with torch.enable_grad():
        own = [t.requires_grad_() for t in (x, *example(device))]
        flat = make_tables(own[1:], T)
        want = run_by_torch(flat, x, None, lengths)
        wanted = torch.autograd.grad(want, own, (x, x[:, :5, :1].expand(2, 5, 3).mT), retain_graph=True)
    tables = _join([t.detach().float() for t in flat], dtype)
    y, end, kept = kernels.run(tables, x.detach().float(), None, lengths)
    g_end = x[:, :5, :1].expand(2, 5, 3).mT.detach().float().contiguous()
    gx, _, found = kernels.gradients(tables, kept, x.detach().float(), g_end, start=False)
    slopes = [t for t in _split(flat, found[0].double()) if t is not None]
    back = torch.autograd.grad([*flat[:3], flat[-1]], own[1:], slopes)
    pairs = zip((y, end, gx, *back), (*want, *wanted), strict=True)
    return all(bool((g.double() - w).norm() <= CLOSE[dtype] * w.norm()) for g, w in pairs)


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    return all(agrees(kernels, device, kind) for kind in CLOSE)


CANDIDATES: tuple[Candidate, ...] = triton_or(nothing, load_kernels, _probe)
