"""Input checks of `linear_scan`, and promotion of mixed shapes and dtypes."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
_KNOWN = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128, *HALF))


def check(a: Tensor, b: Tensor, h0: Tensor | None) -> None:
    """Refuse non-tensors, wrong dtypes or shapes, and different devices."""
    _check_kind("b", b, b)
    _check_kind("a", a, b)
    if h0 is not None:
        _check_kind("h0", h0, b)
    if b.dim() < 2:
        raise ValueError(f"linear_scan: expected b of shape (..., l, n), got {tuple(b.shape)}; add the missing axis.")
    alike = a.dim() == b.dim() and a.shape == b.shape  # ranks first: (n,) is not compared with a symbolic batch size
    if not alike and not _fits(a.shape, b.shape):
        raise ValueError(
            f"linear_scan: expected a that broadcasts to the shape of b {tuple(b.shape)}, got {tuple(a.shape)}; "
            "give (n,), (l, n), (..., 1, n) or all of it, and enlarge b where a has more axes."
        )
    if h0 is not None and not _fits(h0.shape, b.shape[:-2] + b.shape[-1:]):
        raise ValueError(
            f"linear_scan: expected h0 that broadcasts to {(*b.shape[:-2], b.shape[-1])} (b without its time axis), "
            f"got {tuple(h0.shape)}; pass a final state h[..., -1, :] of the same rows, or None for zero."
        )


def _check_kind(name: str, x: Tensor, b: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"linear_scan: expected {name} to be a tensor, got {type(x).__name__}; use torch.as_tensor.")
    if x.dtype not in _KNOWN:
        raise TypeError(
            f"linear_scan: expected {name} in a floating-point or complex dtype, got {x.dtype}; convert with .float()."
        )
    if x is not b and x.device != b.device:
        raise ValueError(
            f"linear_scan: expected {name} on {b.device} where b is, got {x.device}; use {name}.to({str(b.device)!r})."
        )


def _fits(shape: torch.Size, wanted: torch.Size) -> bool:
    """Whether a tensor of `shape` can be expanded to `wanted`."""
    if len(shape) > len(wanted):
        return False
    return all(s == 1 or s == w for s, w in zip(reversed(shape), reversed(wanted), strict=False))


def align(a: Tensor, b: Tensor) -> Tensor:
    """a with the rank and the last axis of b; its other size-1 axes stay, which keeps the time-invariant path."""
    if a.dim() != b.dim():
        a = a.reshape((1,) * (b.dim() - a.dim()) + a.shape)
    return a if a.shape[-1] == b.shape[-1] else a.expand(*a.shape[:-1], b.shape[-1])


def dtypes(a: Tensor, b: Tensor, h0: Tensor | None) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of the result, dtype of the computation)."""
    result = torch.promote_types(a.dtype, b.dtype)
    if h0 is not None:
        result = torch.promote_types(result, h0.dtype)
    return result, torch.float32 if result in HALF else result
