"""The pass of `bank_scan` for a bank of dense systems, S4's; its tables come from `ops.modes.dense`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.bank_scan.operation import (
    CLOSE,
    STEPS,
    Making,
    choose_steps,
    load_kernels,
    run_blocks,
    run_scan,
)
from resolvent.ops.blocked.operation import Blocks
from resolvent.ops.blocked.tables import DenseBank, dense_blocks
from resolvent.ops.modes.dense import flat_blocks, form_blocks
from resolvent.runtime import chip
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
from resolvent.runtime.transforms import is_traced, is_untransformed

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


def dense_bank_scan(
    blocks: Blocks, x: Tensor, h0: Tensor | None, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """y (b, l, d), zero beyond `lengths`, and the state (b, d, s) at each sequence's end; tables of T steps."""
    making = make_dense(lambda own: _join(own, dtype), _split, lambda own: own, lengths)
    return run_scan(making, None, x, h0, lengths, flat_blocks(blocks, copy=False))


def make_dense(
    make: Callable[[Sequence[Tensor]], Any],
    slopes: Callable[[Sequence[Tensor], Tensor], Sequence[Tensor | None]],
    flat: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    lengths: Tensor | None,
) -> Making:
    """From the kernels' tables, the gradients of `own` from the kernels' product, and `flat_blocks` of `own`."""
    by_torch = lambda x, h0, own: run_by_torch(flat(own), x, h0, lengths)  # noqa: E731
    return Making(make, lambda own, found: slopes(own, found[0]), by_torch)


def steps_of(x: Tensor, h0: Tensor | None) -> int:
    """T of the tables of a pass."""
    return choose_steps(x.shape[1], h0 is not None)


def run_by_torch(
    tables: Sequence[Tensor], x: Tensor, h0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same in torch operations, differentiable to every order."""
    return run_blocks(form_blocks(list(tables)), x, h0, lengths)


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
