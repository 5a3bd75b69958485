"""One step of a recurrence as one kernel, for streaming: a step is so short that every torch call matters.

Used without derivatives, transforms and compilers (`is_unwatched`). Otherwise a layer runs its step
as torch operations, which are also the reference for probing kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from resolvent.runtime.dispatch import Candidate, choose, lazily, numba_or
from resolvent.runtime.transforms import is_recorded, is_untransformed

Pair = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], Pair]  # (u, h) -> (y, h'); it may refer to the tables, so they must not change


def is_unwatched(*tensors: Tensor | None) -> bool:
    """Whether only values, without derivatives or transforms, are needed of these tensors."""
    asked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return not (asked or is_recorded(*tensors)) and is_untransformed()


def bank_step(lam: Tensor, row: Tensor, D: Tensor | None) -> Step:
    """y = row . h' + D u with h' = lam h + u for u (b, d), h (b, d, n). row (d, s) multiplies the reals of h'."""
    return choose("bank_step", _BANK, row.device, row.dtype)(lam, row, D)


def mimo_step(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor) -> Step:
    """y = W_out h' + D u with h' = lam h + W_in u for u (b, d) and complex h (b, p), as 2p reals."""
    return choose("mimo_step", _MIMO, W_in.device, W_in.dtype)(lam, W_in, W_out, D)


def selective_step(x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor, A: Tensor, D: Tensor) -> Step:
    """Mamba's step for u (b, d), h (b, d, n): (s, B, C) = x_proj u, dt = softplus(dt_proj s + dt_bias)."""
    return choose("selective_step", _SELECTIVE, A.device, A.dtype)(x_proj, dt_proj, dt_bias, A, D)


# -- the same in torch -------------------------------------------------------------------------------------------------


def _torch_bank(lam: Tensor, row: Tensor, D: Tensor | None) -> Step:
    def step(u: Tensor, h: Tensor) -> Pair:
        h = (lam * h).add_(u[..., None])
        reals = torch.view_as_real(h).flatten(-2) if h.is_complex() else h
        y = (reals * row).sum(-1)
        return (y if D is None else torch.addcmul(y, D, u)), h

    return step


def _torch_mimo(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor) -> Step:
    def step(u: Tensor, h: Tensor) -> Pair:
        h = torch.addcmul(torch.view_as_complex(linear(u, W_in).unflatten(-1, (-1, 2))), lam, h)
        return torch.addcmul(linear(torch.view_as_real(h).flatten(-2), W_out), u, D), h

    return step


def _torch_selective(x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor, A: Tensor, D: Tensor) -> Step:
    n, r = A.shape[1], dt_proj.shape[1]

    def step(u: Tensor, h: Tensor) -> Pair:
        s, B, C = linear(u, x_proj).split([r, n, n], -1)
        dt = softplus(linear(s, dt_proj, dt_bias))
        h = torch.addcmul((dt * u)[..., None] * B[:, None, :], torch.exp(dt[..., None] * A), h)
        return torch.addcmul((h @ C[..., None])[..., 0], D, u), h

    return step


# -- choice of the kernel ---------------------------------------------------------------------------------------------

Prepare = Callable[..., Step]


def _agrees(truth: Prepare, example: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]]) -> Any:
    def probe(prepare: Prepare, device: torch.device, dtype: torch.dtype) -> bool:
        def ramp(*shape: int) -> Tensor:
            size = torch.Size(shape).numel()
            return (torch.arange(1, size + 1, device=device, dtype=torch.float64) / size).reshape(shape).to(dtype)

        *tables, u, h = example(ramp)
        found, want = prepare(*tables)(u, h), truth(*tables)(u, h)
        return all(torch.allclose(x, y, 1e-5, 1e-6) for x, y in zip(found, want, strict=True))

    return probe


def _bank_example(ramp: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Five complex states: one vector plus one."""
    lam, h = torch.view_as_complex(ramp(3, 5, 2)), torch.view_as_complex(ramp(2, 3, 5, 2))
    return lam, ramp(3, 10), ramp(3), ramp(2, 3), h


def _mimo_example(ramp: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    lam, h = torch.view_as_complex(ramp(2, 2)), torch.view_as_complex(ramp(2, 2, 2))
    return lam, ramp(4, 3), ramp(3, 4), ramp(3), ramp(2, 3), h


def _selective_example(ramp: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    return ramp(10, 3), ramp(3, 2), ramp(3) - 1, -ramp(3, 4), ramp(3), ramp(2, 3), ramp(2, 3, 4)


def _candidates(load: Callable[[], Prepare], truth: Prepare, example: Any) -> tuple[Candidate, ...]:
    return numba_or(truth, load, _agrees(truth, example))


_BANK = _candidates(lazily("ops.step.numba", "bank"), _torch_bank, _bank_example)
_MIMO = _candidates(lazily("ops.step.numba", "mimo"), _torch_mimo, _mimo_example)
_SELECTIVE = _candidates(lazily("ops.step.selective_numba", "selective"), _torch_selective, _selective_example)
