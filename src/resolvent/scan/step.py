"""One step of a recurrence as one kernel, for streaming: a step is so little work that each torch call shows.

Used where nobody watches (`unwatched`): no derivative, no transform, no compiler. Otherwise a layer writes its step as
plain torch operations, which are also the truth that each kernel is probed against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear, softplus

from resolvent.scan.dispatch import Candidate, choose

Pair = tuple[Tensor, Tensor]
FEW = 8  # sequences up to which loops beat the library's matrix products


def unwatched(*tensors: Tensor | None) -> bool:
    """Whether plain values are all that is wanted of these tensors."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    plain = all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    return plain and not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors))


def bank_step(lam: Tensor, row: Tensor, D: Tensor | None, u: Tensor, h: Tensor) -> Pair:
    """y = row . h' + D u with h' = lam h + u for u (b, d), h (b, d, n): (y, h'). row (d, s) meets the reals of h'."""
    return choose("bank_step", _BANK, u.device, u.dtype)(lam, row, D, u, h)


def mimo_step(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor, u: Tensor, h: Tensor) -> Pair:
    """y = W_out h' + D u with h' = lam h + W_in u for u (b, d) and complex h (b, p) met as 2p reals: (y, h')."""
    if u.shape[0] > FEW:
        return _torch_mimo(lam, W_in, W_out, D, u, h)
    return choose("mimo_step", _MIMO, u.device, u.dtype)(lam, W_in, W_out, D, u, h)


def selective_step(weights: tuple[Tensor, Tensor, Tensor, Tensor], seen: Tensor, u: Tensor, h: Tensor) -> Pair:
    """Mamba's step for u (b, d), h (b, d, n), seen = (s, B, C) (b, r + 2n), weights (dt_proj, dt_bias, A, D)."""
    return choose("selective_step", _SELECTIVE, u.device, u.dtype)(weights, seen, u, h)


# -- the same in torch -------------------------------------------------------------------------------------------------


def _torch_bank(lam: Tensor, row: Tensor, D: Tensor | None, u: Tensor, h: Tensor) -> Pair:
    h = (lam * h).add_(u[..., None])
    reals = torch.view_as_real(h).flatten(-2) if h.is_complex() else h
    y = (reals * row).sum(-1)
    return (y if D is None else torch.addcmul(y, D, u)), h


def _torch_mimo(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor, u: Tensor, h: Tensor) -> Pair:
    h = torch.addcmul(torch.view_as_complex(linear(u, W_in).unflatten(-1, (-1, 2))), lam, h)
    return torch.addcmul(linear(torch.view_as_real(h).flatten(-2), W_out), u, D), h


def _torch_selective(weights: tuple[Tensor, Tensor, Tensor, Tensor], seen: Tensor, u: Tensor, h: Tensor) -> Pair:
    dt_proj, dt_bias, A, D = weights
    n = A.shape[1]
    s, B, C = seen.split([dt_proj.shape[1], n, n], -1)
    dt = softplus(linear(s, dt_proj, dt_bias))
    h = torch.addcmul((dt * u)[..., None] * B[:, None, :], torch.exp(dt[..., None] * A), h)
    return torch.addcmul((h @ C[..., None])[..., 0], D, u), h


# -- which of them runs ------------------------------------------------------------------------------------------------


def _numba(name: str) -> Callable[[], Callable[..., Pair]]:
    def load() -> Callable[..., Pair]:
        from resolvent.scan import step_numba

        return getattr(step_numba, name)

    return load


def _cpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


def _agrees(truth: Callable[..., Pair], example: Callable[[torch.device, torch.dtype], tuple[Any, ...]]) -> Any:
    def probe(kernel: Callable[..., Pair], device: torch.device, dtype: torch.dtype) -> bool:
        args = example(device, dtype)
        return all(torch.allclose(x, y, 1e-5, 1e-6) for x, y in zip(kernel(*args), truth(*args), strict=True))

    return probe


def _ramp(*shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    size = torch.Size(shape).numel()
    return (torch.arange(1, size + 1, device=device, dtype=torch.float64) / size).reshape(shape).to(dtype)


def _bank_example(device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    def ramp(*shape: int) -> Tensor:
        return _ramp(*shape, device=device, dtype=dtype)

    lam = torch.view_as_complex(ramp(3, 2, 2))
    return lam, ramp(3, 4), ramp(3), ramp(2, 3), torch.view_as_complex(ramp(2, 3, 2, 2))


def _mimo_example(device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    def ramp(*shape: int) -> Tensor:
        return _ramp(*shape, device=device, dtype=dtype)

    lam, h = torch.view_as_complex(ramp(2, 2)), torch.view_as_complex(ramp(2, 2, 2))
    return lam, ramp(4, 3), ramp(3, 4), ramp(3), ramp(2, 3), h


def _selective_example(device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    def ramp(*shape: int) -> Tensor:
        return _ramp(*shape, device=device, dtype=dtype)

    return (ramp(3, 2), ramp(3) - 1, -ramp(3, 4), ramp(3)), ramp(2, 10), ramp(2, 3), ramp(2, 3, 4)


def _candidates(name: str, truth: Callable[..., Pair], example: Any) -> tuple[Candidate, ...]:
    return (
        Candidate("numba", _cpu, _numba(name), _agrees(truth, example)),
        Candidate("torch", lambda device, dtype: True, lambda: truth, lambda kernel, device, dtype: True),
        Candidate("reference", lambda device, dtype: True, lambda: truth, lambda kernel, device, dtype: True),
    )


_BANK = _candidates("bank_step", _torch_bank, _bank_example)
_MIMO = _candidates("mimo_step", _torch_mimo, _mimo_example)
_SELECTIVE = _candidates("selective_step", _torch_selective, _selective_example)
