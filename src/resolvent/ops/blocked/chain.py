"""Carrying a filter's states over all of its blocks: from zero, without the last state.

    h_0 = 0,  h_{k+1} = A^T h_k + z_k          or with `reverse` from the last block to the first, for the adjoint

A^T is diagonal, (d, n) real or complex, or dense and transposed, (d, s, s); z (d, b, m, s) is in reals (`blocked`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.blocked.carry import as_reals, dense_along, form_states
from resolvent.ops.linear_scan import linear_scan
from resolvent.runtime.dispatch import choose, lazily, triton_or

WIDEST = 128  # widest dense state whose matrix fits in a program's registers
Chain = Callable[[Tensor, Tensor, Tensor, bool], None]


def chain(whole: Tensor, z: Tensor, dtype: torch.dtype, reverse: bool = False) -> Tensor:
    """The states before each block, with `reverse` those after it, (d, b, m, s) in `dtype`; no graph is recorded.

    The carried state stays in the dtype of z.
    """
    out = torch.empty_like(z, dtype=dtype)
    if z.is_cuda and (whole.dim() == 2 or whole.shape[-1] <= WIDEST):
        kernel: Chain = choose("chain", _CHAIN, z.device, z.dtype)
        kernel(whole, z, out, reverse)
    else:
        _torch_chain(whole, z, out, reverse)
    return out


def along(whole: Tensor, z: Tensor, reverse: bool = False) -> Tensor:
    """The state after each block, with `reverse` that before it, (d, b, m, s); differentiable."""
    h0 = z.new_zeros(z.shape[:2] + z.shape[3:])
    if whole.dim() == 2:
        return diagonal_along(whole, z, h0, reverse)
    return dense_along(whole, z.flip(2), h0).flip(2) if reverse else dense_along(whole, z, h0)


def diagonal_along(whole: Tensor, z: Tensor, h0: Tensor, reverse: bool = False) -> Tensor:
    """h_k = whole h_{k-1} + z_k for whole (d, n), z (d, b, m, s) and h0 (d, b, s), or from the last k to the first."""
    return as_reals(linear_scan(whole[:, None, None], form_states(z, whole), form_states(h0, whole), reverse))


def _torch_chain(whole: Tensor, z: Tensor, out: Tensor, reverse: bool) -> None:
    shifted = F.pad(z[:, :, 1:], (0, 0, 0, 1)) if reverse else F.pad(z[:, :, :-1], (0, 0, 1, 0))
    out.copy_(along(whole, shifted, reverse))


def _probe_chain(kernel: Chain, device: torch.device, dtype: torch.dtype) -> bool:
    """A real, a complex and a dense A^T, both directions, over three blocks."""
    z = torch.linspace(-1, 1, 60, device=device, dtype=dtype)
    own = z[None, 7:12]
    turned = own.to(torch.promote_types(dtype, torch.complex64)) * (0.8 + 0.6j)
    cases = [
        (own, z[:30].reshape(1, 2, 3, 5)),
        (turned, z.reshape(1, 2, 3, 10)),
        (z[:25].reshape(1, 5, 5), z.reshape(1, 4, 3, 5)),
        ((z.sin()[:, None] * z.cos() / 30)[None], (z[:, None] * z)[:6].reshape(1, 2, 3, 60)),
    ]

    def found(by: Chain, whole: Tensor, z: Tensor, reverse: bool) -> Tensor:
        out = torch.empty_like(z)
        by(whole, z, out, reverse)
        return out

    return all(
        torch.allclose(found(kernel, a, x, way), found(_torch_chain, a, x, way), 1e-5, 1e-6)
        for a, x in cases
        for way in (False, True)
    )


_CHAIN = triton_or(_torch_chain, lazily("ops.blocked.carry_triton", "chain"), _probe_chain)
