"""The candidates for the linear scan and for its fused backward pass, best first.

A forward kernel is (a, b, h0, reverse) -> h, a backward kernel (g, a, h, h0, reverse) -> (∂a, ∂b), without a graph.
One that says `takes_marks` has a further argument, where the state is forgotten; for others a gets zeros there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.checks import HALF
from resolvent.ops.linear_scan.packed import clear_starts
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.linear_scan.rows import sum_to
from resolvent.ops.linear_scan.torch import chunked_scan
from resolvent.runtime.dispatch import Candidate, Kernel, choose

TOLERANCE = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-12, torch.complex128: 1e-12}
TOLERANCE |= dict.fromkeys(HALF, 2e-2)


def forward_kernel(b: Tensor) -> Kernel:
    return choose("linear_scan", HALF_FORWARD if b.dtype in HALF else FORWARD, b.device, b.dtype)


def backward_kernel(h: Tensor) -> Kernel:
    return choose("linear_scan_backward", HALF_BACKWARD if h.dtype in HALF else BACKWARD, h.device, h.dtype)


def marked_forward(kernel: Kernel, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor) -> Tensor:
    """The kernel's states, forgotten where `reset` (..., l) says so."""
    if getattr(kernel, "takes_marks", False):
        return kernel(a, b, h0, reverse, reset)
    return kernel(clear_starts(a, reset), b, h0, reverse)


def marked_backward(
    kernel: Kernel, g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor
) -> tuple[Tensor, Tensor]:
    if getattr(kernel, "takes_marks", False):
        return kernel(g, a, h, h0, reverse, reset)
    ga, gb = kernel(g, clear_starts(a, reset), h, h0, reverse)
    return sum_to(clear_starts(ga, reset), a.shape), gb


def compose_backward(scan: Kernel) -> Kernel:
    """The backward kernel made of a forward kernel and elementwise operations."""

    def backward(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        after = a.conj().resolve_conj()
        if a.shape[-2] > 1:
            after = after.roll(1 if reverse else -1, -2)
        gamma = scan(after, g, None, not reverse)
        ga = gamma * _previous(h, h0, reverse).conj()
        return sum_to(ga, a.shape), gamma

    return backward


def _previous(h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    before = torch.empty_like(h)
    first = 0.0 if h0 is None else h0
    if reverse:
        before[..., :-1, :], before[..., -1, :] = h[..., 1:, :], first
    else:
        before[..., 1:, :], before[..., 0, :] = h[..., :-1, :], first
    return before


# -- candidates --------------------------------------------------------------------------------------------------------


def _load_numba_scan() -> Kernel:
    from resolvent.ops.linear_scan.numba import numba_scan

    return numba_scan


def _load_numba_backward() -> Kernel:
    from resolvent.ops.linear_scan.numba import numba_backward

    return numba_backward


def _load_triton(name: str) -> Kernel:
    from resolvent.ops.linear_scan import triton as linear_triton

    return getattr(linear_triton, name)


def in_float32(kernel: Kernel) -> Kernel:
    """The same for half types: converted on the way in and out, accumulated in float32."""

    def run(*args: Any) -> Any:
        dtype = args[1].dtype
        out = kernel(*(x.float() if isinstance(x, Tensor) else x for x in args))
        return out.to(dtype) if isinstance(out, Tensor) else tuple(x.to(dtype) for x in out)

    return run


def _cpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype in TOLERANCE and dtype not in HALF


def _gpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda"


def _anywhere(device: torch.device, dtype: torch.dtype) -> bool:
    return True


def _is_trusted(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    return True


def _example(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A tiny a, b (1, 3, 2) and h0 (1, 2); a is complex where the dtype is."""
    ramp = torch.arange(1, 7, device=device, dtype=torch.float32).reshape(1, 3, 2) / 8
    phase = 1 + 0.5j if dtype.is_complex else 1.0
    b = ((1 - ramp) / phase).to(dtype)
    return (ramp * phase).to(dtype), b, b[:, 1]


def _close(x: Tensor, y: Tensor) -> bool:
    return bool(((x - y).abs().max() <= TOLERANCE[x.dtype] * y.abs().max()).item())


def _probe_forward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    a, b, h0 = _example(device, dtype)
    return all(_close(kernel(a_, b, h0, False), reference_scan(a_, b, h0, False)) for a_ in (a, a[:, :1]))


def _probe_backward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    a, b, h0 = _example(device, dtype)
    truth = compose_backward(reference_scan)
    for a_ in (a, a[:, :1]):
        pairs = zip(kernel(b, a_, b, h0, False), truth(b, a_, b, h0, False), strict=True)
        if not all(_close(x, y) for x, y in pairs):
            return False
    return True


def _probe_triton_forward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    """One kernel only: each costs seconds to compile, and they are compiled anew for every shape of call."""
    a, b, h0 = _example(device, dtype)
    return _close(kernel(a, b, h0, False), reference_scan(a, b, h0, False))


def _probe_triton_backward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    a, b, h0 = _example(device, dtype)
    pairs = zip(kernel(b, a, b, h0, False), compose_backward(reference_scan)(b, a, b, h0, False), strict=True)
    return all(_close(x, y) for x, y in pairs)


TRITON_FORWARD = Candidate("triton", _gpu, lambda: _load_triton("triton_scan"), _probe_triton_forward)
TRITON_BACKWARD = Candidate("triton", _gpu, lambda: _load_triton("triton_backward"), _probe_triton_backward)
FORWARD = (
    TRITON_FORWARD,
    Candidate("numba", _cpu, _load_numba_scan, _probe_forward),
    Candidate("torch", _anywhere, lambda: chunked_scan, _probe_forward),
    Candidate("reference", _anywhere, lambda: reference_scan, _is_trusted),
)
BACKWARD = (
    TRITON_BACKWARD,
    Candidate("numba", _cpu, _load_numba_backward, _probe_backward),
    Candidate("torch", _anywhere, lambda: compose_backward(chunked_scan), _probe_backward),
    Candidate("reference", _anywhere, lambda: compose_backward(reference_scan), _is_trusted),
)
HALF_FORWARD = (
    TRITON_FORWARD,
    Candidate("torch", _anywhere, lambda: in_float32(chunked_scan), _probe_forward),
    Candidate("reference", _anywhere, lambda: in_float32(reference_scan), _is_trusted),
)
HALF_BACKWARD = (
    TRITON_BACKWARD,
    Candidate("torch", _anywhere, lambda: in_float32(compose_backward(chunked_scan)), _probe_backward),
    Candidate("reference", _anywhere, lambda: in_float32(compose_backward(reference_scan)), _is_trusted),
)
