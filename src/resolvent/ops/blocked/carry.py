"""Carrying the state from block to block in `ops.blocked`: a scan with shifted output, and its adjoint, in place.

    h_0 = h0,    h_{k+1} = a h_k + z_k                 k = 0 .. m-1; h_m is the last state
    γ_m = ∂h_m,  γ_k = ‾a γ_{k+1} + ∂h_k               ∂z_k = γ_{k+1},  ∂a = sum_k γ_{k+1} ‾h_k,  ∂h0 = γ_0

a (d, n) is real or complex, or dense and transposed, (d, s, s); the states are real: z (d, b, m, s) with s = n, or
s = 2n for interleaved real and imaginary parts. No graph is recorded.

"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.ops.linear_scan.rows import sum_to
from resolvent.runtime.dispatch import choose, lazily, triton_or

FEW = 8  # blocks up to which a loop is fastest
LOOPED = 16  # the same for diagonal ones on a CPU
Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def carry(a: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    """Write h_0 .. h_{m-1} to before (d, b, m, s) and h_m to end (d, b, s); h0 is (d, b, s)."""
    if a.dim() == 3:
        return _dense_carry(a, z, h0, before, end)
    if not z.is_cuda:
        return (_loop_carry if z.shape[2] <= LOOPED else _torch_carry)(a, z, h0, before, end)
    kernel: Forward = choose("carry", _FORWARD, z.device, z.dtype)
    kernel(a, z, h0, before, end)


def carry_backward(a: Tensor, g: Tensor, g_end: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(∂h0 (d, b, s), ∂a (d, n)), ∂a only if the states are given; g, the gradient of `before`, becomes ∂z."""
    if a.dim() == 3:
        return _dense_backward(a, g, g_end, before)
    kernel: Backward = choose("carry_backward", _BACKWARD, g.device, g.dtype) if g.is_cuda else _torch_backward
    return kernel(a, g, g_end, before)


# -- a dense matrix ----------------------------------------------------------------------------------------------------


def dense_along(P: Tensor, z: Tensor, h0: Tensor) -> Tensor:
    return (_combine_pairs if z.is_cuda else _one_by_one)(P, z, h0)


def _one_by_one(P: Tensor, z: Tensor, h0: Tensor) -> Tensor:
    """h_k = h_{k-1} P + z_k for P (d, s, s), z (d, b, m, s) and h0 (d, b, s)."""
    h, states = h0, []
    for z_k in z.unbind(2):
        h = torch.baddbmm(z_k, h, P)
        states.append(h)
    return torch.stack(states, 2)


def _combine_pairs(P: Tensor, z: Tensor, h0: Tensor) -> Tensor:
    """The same in log2(m) rounds, for devices underused by m short products: two blocks as one, with P²,

    h_{2j+1} = h_{2j-1} P² + (z_{2j} P + z_{2j+1}),    and from these    h_{2j} = h_{2j-1} P + z_{2j}
    """
    m = z.shape[2]
    if m <= FEW:
        return _one_by_one(P, z, h0)
    early, late = z[:, :, ::2], z[:, :, 1::2]
    pairs = late.shape[2]
    second = _combine_pairs(P @ P, _onto(late, early[:, :, :pairs], P), h0)
    before = torch.cat([h0[:, :, None], second[:, :, : early.shape[2] - 1]], 2)
    first = _onto(early, before, P)
    both = torch.stack([first[:, :, :pairs], second], 3).flatten(2, 3)
    return both if m % 2 == 0 else torch.cat([both, first[:, :, pairs:]], 2)


def _onto(z: Tensor, h: Tensor, P: Tensor) -> Tensor:
    """z + h P, both (d, b, m, s)."""
    return torch.baddbmm(z.flatten(1, 2), h.flatten(1, 2), P).view(z.shape)


def _dense_carry(P: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    h = dense_along(P, z, h0)
    before[:, :, 0], before[:, :, 1:], end[:] = h0, h[:, :, :-1], h[:, :, -1]


def _dense_backward(P: Tensor, g: Tensor, g_end: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    gamma = dense_along(P.mT, g.flip(2), g_end).flip(2)
    g[:, :, :-1], g[:, :, -1] = gamma[:, :, 1:], g_end
    return gamma[:, :, 0], None if before is None else before.flatten(1, 2).mT @ g.flatten(1, 2)


# -- in torch ----------------------------------------------------------------------------------------------------------


def _loop_carry(a: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    """Few blocks, one by one."""
    states = torch.view_as_complex(before.unflatten(-1, (-1, 2))) if a.is_complex() else before
    before[:, :, 0], z, row = h0, form_states(z, a), a[:, None]
    for k in range(z.shape[2] - 1):
        torch.addcmul(z[:, :, k], row, states[:, :, k], out=states[:, :, k + 1])
    end.copy_(as_reals(torch.addcmul(z[:, :, -1], row, states[:, :, -1])))


def _torch_carry(a: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    h = as_reals(linear_scan(a[:, None, None], form_states(z, a), form_states(h0, a)))
    before[:, :, 0], before[:, :, 1:], end[:] = h0, h[:, :, :-1], h[:, :, -1]


def _torch_backward(a: Tensor, g: Tensor, g_end: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    gamma = as_reals(linear_scan(a[:, None, None].conj(), form_states(g, a), form_states(g_end, a), reverse=True))
    g[:, :, :-1], g[:, :, -1] = gamma[:, :, 1:], g_end
    if before is None:
        return gamma[:, :, 0], None
    products = form_states(g, a) * form_states(before, a).conj()
    return gamma[:, :, 0], sum_to(products, torch.Size((a.shape[0], 1, 1, a.shape[1])))[:, 0, 0]


def form_states(h: Tensor, lam: Tensor) -> Tensor:
    """Rows of reals (..., s) as complex or real numbers (..., n), like lam.

    Contiguous: if a product saves its conjugate with other strides than at compile time, the compiler copies the raw
    memory, and the lazy conjugation is lost.
    """
    return torch.view_as_complex(h.contiguous().unflatten(-1, (-1, 2))) if lam.is_complex() else h


def as_reals(h: Tensor) -> Tensor:
    """(..., n) as (..., s) again."""
    return torch.view_as_real(h.resolve_conj()).flatten(-2) if h.is_complex() else h


# -- choice of the kernel ---------------------------------------------------------------------------------------------


def _examples(device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """A real a and a complex one, five numbers each, with z (1, 2, 3, s)."""
    z = torch.linspace(-1, 1, 60, device=device, dtype=dtype)
    kind = torch.promote_types(dtype, torch.complex64)
    return [
        (z[None, 7:12], z[:30].reshape(1, 2, 3, 5)),
        (z[None, 7:12].to(kind) * (0.8 + 0.6j), z.reshape(1, 2, 3, 10)),
    ]


def _close(found: list[Tensor], want: list[Tensor]) -> bool:
    return all(torch.allclose(x, y, 1e-5, 1e-6) for x, y in zip(found, want, strict=True))


def _probe_forward(kernel: Forward, device: torch.device, dtype: torch.dtype) -> bool:
    def states(by: Forward, a: Tensor, z: Tensor) -> list[Tensor]:
        out = [torch.empty_like(z), torch.empty_like(z[:, :, 0])]
        by(a, z, z[:, :, 1], out[0], out[1])
        return out

    return all(_close(states(kernel, a, z), states(_torch_carry, a, z)) for a, z in _examples(device, dtype))


def _probe_backward(kernel: Backward, device: torch.device, dtype: torch.dtype) -> bool:
    def gradients(by: Backward, a: Tensor, z: Tensor) -> list[Tensor]:
        g = z.clone()
        return [g, *(t for t in by(a, g, z[:, :, 1], z) if t is not None)]

    return all(_close(gradients(kernel, a, z), gradients(_torch_backward, a, z)) for a, z in _examples(device, dtype))


_FORWARD = triton_or(_torch_carry, lazily("ops.blocked.carry_triton", "carry"), _probe_forward)
_BACKWARD = triton_or(_torch_backward, lazily("ops.blocked.carry_triton", "carry_backward"), _probe_backward)
