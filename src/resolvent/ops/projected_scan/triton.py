"""`projected` as one Triton kernel: a program processes one sequence, and the states never leave the chip.

The input gradient is the same kernel with W_outᵀ, W_inᵀ and conjugate multipliers, from the last step to the first. The
gradients of the tables would need two more accumulators of the tables' size than there are registers: in that pass the
states and their adjoints are written, (b, l, 2p), and summed by products; ∂lam is summed in the adjoint scan,
one part per sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.projected_scan.triton_kernels import projected_kernel
from resolvent.runtime.launch import on_device

SEGMENTS = 2  # per tile
STEPS = 32  # per segment: 128 bytes of each channel per tile
STATES = 64  # minimum padded size of tables: with two segments four warps, as tensor cores need


class Tables(NamedTuple):
    lam: Tensor  # (p, 2)
    W_in: Tensor  # (2p, d)
    W_out: Tensor  # (d, 2p)

    def turned(self) -> Tables:
        """The tables of the adjoint, whose multipliers the kernel conjugates."""
        return Tables(self.lam, self.W_out.mT, self.W_in.mT)


def forward(w: Tables, x: Tensor) -> Tensor:
    """y of x, (d, b, l) both, with the strides of x if dense."""
    y = torch.empty_like(x)
    _launch(w, x, y, back=False)
    return y


def input_gradient(w: Tables, g: Tensor, beside: Tensor | None = None) -> Tensor:
    """∂x, plus `beside` if given."""
    gx = torch.empty_like(g)
    _launch(w.turned(), g, gx, back=True, beside=beside)
    return gx


def gradients(w: Tables, x: Tensor, g: Tensor, beside: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of lam, W_in, W_out and x, the last plus `beside` if given."""
    (d, b, l), p = x.shape, w.lam.shape[0]
    h, gamma = (torch.empty((b, l, 2 * p), dtype=x.dtype, device=x.device) for _ in range(2))
    parts = torch.empty((b, 2, p), dtype=torch.float32, device=x.device)
    gx = torch.empty_like(g)
    _launch(w, x, None, back=False, kept=h)
    _launch(w.turned(), g, gx, back=True, kept=gamma, states=h, parts=parts, beside=beside)
    gW_in = (x.reshape(d, -1) @ gamma.flatten(0, 1)).mT
    gW_out = g.reshape(d, -1) @ h.flatten(0, 1)
    return parts.sum(0).mT.to(w.lam.dtype), gW_in, gW_out, gx


def _pad_sizes(d: int, p: int) -> tuple[int, int]:
    return max(16, triton.next_power_of_2(d)), max(STATES, triton.next_power_of_2(p))


def _launch(
    w: Tables, x: Tensor, y: Tensor | None, *, back: bool, kept: Tensor | None = None, states: Tensor | None = None,
    parts: Tensor | None = None, beside: Tensor | None = None,
) -> None:  # fmt: skip
    (d, b, l), p = x.shape, w.lam.shape[0]
    wide, narrow = _pad_sizes(d, p)
    out = x if y is None else y
    if beside is not None and beside.stride() != out.stride():
        beside = torch.empty_like(out).copy_(beside)
    unit = _unit(x, out)
    sizes = [(t.stride(0) // unit, t.stride(1) // unit, t.stride(2)) for t in (x, out)]
    with on_device(x):
        projected_kernel[(b,)](
            x, *sizes[0], out, *sizes[1], w.lam.detach().contiguous(), w.W_in, *w.W_in.stride(),
            w.W_out, *w.W_out.stride(), x if kept is None else kept, x if states is None else states,
            x if parts is None else parts, beside, l // unit, d, p,
            BACK=back, WRITE=y is not None, KEEP=kept is not None, LEARN=parts is not None,
            WHOLE=d == wide and l % (SEGMENTS * STEPS) == 0, UNIT=unit, AHEAD=parts is None,
            BD=wide, BP=narrow, SEG=SEGMENTS, T=STEPS, LOG_T=STEPS.bit_length() - 1,
            num_warps=max(1, SEGMENTS * narrow // 32),
        )  # fmt: skip


def _unit(x: Tensor, y: Tensor) -> int:
    """8 if rows are aligned to 8 numbers, enough for the widest loads, but not to 16, which the compiler detects;
    otherwise 1."""
    numbers = [x.shape[2], *(t.stride(i) for t in (x, y) for i in (0, 1))]
    return 8 if all(n % 8 == 0 for n in numbers) and any(n % 16 for n in numbers) else 1
