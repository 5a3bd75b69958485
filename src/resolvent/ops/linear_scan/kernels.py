"""The candidates for the linear scan and for its fused backward pass, best first.

A forward kernel is (a, b, h0, reverse) -> h, a backward kernel (g, a, h, h0, reverse) -> (∂a, ∂b), without a graph.
One with `takes_marks` has another argument, where the state is reset; for others a is set to zero there.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.adjoint import adjoint, previous
from resolvent.ops.linear_scan.checks import HALF
from resolvent.ops.linear_scan.packed import clear_starts
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.linear_scan.rows import sum_to
from resolvent.ops.linear_scan.torch import chunked_scan
from resolvent.runtime.dispatch import Candidate, Kernel, choose, lazily

TOLERANCE = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-12, torch.complex128: 1e-12}
TOLERANCE |= dict.fromkeys(HALF, 2e-2)


def forward_kernel(b: Tensor) -> Kernel:
    return choose("linear_scan", FORWARD, b.device, b.dtype)


def backward_kernel(h: Tensor) -> Kernel:
    return choose("linear_scan_backward", BACKWARD, h.device, h.dtype)


def marked_forward(kernel: Kernel, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor) -> Tensor:
    """The kernel's states, reset where `reset` (..., l) is set."""
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
        gamma = adjoint(scan, g, a, reverse)
        ga = gamma * previous(h, h0, reverse).conj()
        return sum_to(ga, a.shape), gamma

    return backward


# -- candidates --------------------------------------------------------------------------------------------------------


def in_float32(kernel: Kernel) -> Kernel:
    """The same, half types converted on input and output, accumulated in float32."""

    @wraps(kernel)
    def run(*args: Any) -> Any:
        dtype = args[1].dtype
        if dtype not in HALF:
            return kernel(*args)
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
    """A tiny a, b (1, 3, 2) and h0 (1, 2); a is complex if the dtype is."""
    ramp = torch.arange(1, 7, device=device, dtype=torch.float32).reshape(1, 3, 2) / 8
    phase = 1 + 0.5j if dtype.is_complex else 1.0
    b = ((1 - ramp) / phase).to(dtype)
    return (ramp * phase).to(dtype), b, b[:, 1]


def _close(x: Tensor, y: Tensor) -> bool:
    return bool(((x - y).abs().max() <= TOLERANCE[x.dtype] * y.abs().max()).item())


def _probe_forward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    a, b, h0 = _example(device, dtype)
    return all(_close(kernel(a_, b, h0, False), reference_scan(a_, b, h0, False)) for a_ in _multipliers(a))


def _probe_backward(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    (a, b, h0), truth = _example(device, dtype), compose_backward(reference_scan)
    pairs = (zip(kernel(b, a_, b, h0, False), truth(b, a_, b, h0, False), strict=True) for a_ in _multipliers(a))
    return all(_close(x, y) for pair in pairs for x, y in pair)


def _multipliers(a: Tensor) -> tuple[Tensor, ...]:
    """a, and on a CPU a constant one: on a GPU each needs a separate kernel, which takes seconds to compile."""
    return (a,) if a.is_cuda else (a, a[:, :1])


FORWARD = (
    Candidate("triton", _gpu, lazily("ops.linear_scan.triton", "triton_scan"), _probe_forward),
    Candidate("numba", _cpu, lazily("ops.linear_scan.numba", "numba_scan"), _probe_forward),
    Candidate("torch", _anywhere, lambda: in_float32(chunked_scan), _probe_forward),
    Candidate("reference", _anywhere, lambda: in_float32(reference_scan), _is_trusted),
)
BACKWARD = (
    Candidate("triton", _gpu, lazily("ops.linear_scan.triton", "triton_backward"), _probe_backward),
    Candidate("numba", _cpu, lazily("ops.linear_scan.numba", "numba_backward"), _probe_backward),
    Candidate("torch", _anywhere, lambda: in_float32(compose_backward(chunked_scan)), _probe_backward),
    Candidate("reference", _anywhere, lambda: in_float32(compose_backward(reference_scan)), _is_trusted),
)
