"""Runs the selective scan's kernels: chooses the backend, casts inputs and outputs. Independent of autograd.

A backend is two functions on `Inputs` with l >= 1, of one dtype, float32 or float64, or with `as_given` of
any mixture of float32 and half types:
    forward(x, reverse, save, reset) -> y (b, l, d), h_last (b, d, n), saved (b, chunks, n, d)
    backward(x, saved, gy, gh, reverse, reset) -> one gradient per input
With `as_given` they also take a bias, the dtype of y, whether to save states `often`, and a buffer for the gate's
gradient, as `forward` and `backward` below. `saved` holds the state before each chunk of `CHUNK` steps in the order of
the scan, and is empty unless `save`.
`reset` (b, l), or None, says before which steps the state is reset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.selective_scan.inputs import Inputs, accumulator, cast, make_steps, undo_steps
from resolvent.ops.selective_scan.reference import selective_reference
from resolvent.runtime.dispatch import Candidate, available, choose, lazily

FORWARD, BACKWARD = "selective_scan", "selective_scan_backward"


def forward(
    x: Inputs, reverse: bool, save: bool, reset: Tensor | None = None, bias: Tensor | None = None,
    into: torch.dtype | None = None, often: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y in the dtype `into`, else that of u; the last state and the saved states in the accumulator's.

    `often`: kernels that support it save more states, in their own layout, so that the backward recomputes none: a
    fifth less time, and with 16 states the memory of four tensors like u instead of one.
    With a bias (d,) the steps are softplus(dt + bias), computed inside kernels that support it.
    """
    dtype = accumulator(x)
    kernel = choose(FORWARD, FORWARD_CANDIDATES, x.u.device, dtype)
    if save:  # a probe started from autograd's own thread would deadlock
        choose(BACKWARD, BACKWARD_CANDIDATES, x.u.device, dtype)
    into = x.u.dtype if into is None else into
    if _as_given(kernel):
        y, h, saved = kernel(x, reverse, save, reset, bias, into, often)
    else:
        y, h, saved = kernel(cast(make_steps(x, bias), dtype), reverse, save, reset)
    return y.to(into), h, saved


def _as_given(kernel: Callable[..., Any]) -> bool:
    """Whether the kernel accepts mixed dtypes; otherwise inputs are cast to one."""
    return getattr(kernel, "as_given", False)


def backward(
    x: Inputs, saved: Tensor, gy: Tensor | None, gh: Tensor | None, reverse: bool, reset: Tensor | None = None,
    bias: Tensor | None = None, gz: Tensor | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of every input and of the bias, if any, each in its dtype, that of z in `gz` if given.

    None means a zero upstream gradient.
    """
    dtype = accumulator(x)
    kernel = choose(BACKWARD, BACKWARD_CANDIDATES, x.u.device, dtype)
    if saved.shape[1] == 0:
        saved = forward(x, reverse, True, reset, bias, often=True)[2]
    gy = torch.zeros_like(x.u) if gy is None else gy
    gh = x.u.new_zeros(x.u.shape[0], *x.A.shape, dtype=dtype) if gh is None else gh.to(dtype)
    if _as_given(kernel):
        gradients = kernel(x, saved, gy, gh, reverse, reset, bias, gz)
    else:
        found = kernel(cast(make_steps(x, bias), dtype), saved, gy.to(dtype), gh, reverse, reset)
        gradients = undo_steps(x, bias, found)
    given = x if bias is None else (*x, bias)
    made = [None if p is None or g is None else g.to(p.dtype) for p, g in zip(given, gradients, strict=True)]
    if gz is not None and made[6] is not None and made[6].data_ptr() != gz.data_ptr():
        made[6] = gz.copy_(made[6])
    return made


# -- the candidates ----------------------------------------------------------------------------------------------------


def _load(backend: str, name: str) -> Callable[[], Any]:
    return lazily(f"ops.selective_scan.{backend}", name)


def _tiny(device: torch.device, dtype: torch.dtype) -> Inputs:
    """A fixed input with every argument: b 2, l 3, d 2, n 2."""
    wave = torch.arange(1, 13, device=device, dtype=dtype).sin().reshape(2, 3, 2)
    return Inputs(
        wave, wave.abs(), -wave[0, :2].abs(), wave.flip(0), wave.flip(1), wave[0, 0], wave.flip(2), wave[:, :2]
    )


def _near(got: Tensor, want: Tensor) -> bool:
    return torch.allclose(got, want, rtol=1e-4, atol=1e-5)


def _probe_forward(kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    x = _tiny(device, dtype)
    pairs = zip(kernel(x, False, True), selective_reference(x), strict=False)
    return all(_near(got, want) for got, want in pairs)


def _probe_backward(kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    x = _tiny(device, dtype)
    start = x.u[:, :2]
    gy, gh = torch.ones_like(x.u), torch.ones_like(start)
    saved = start.transpose(1, 2)[:, None].contiguous()  # three steps are one chunk
    want = _load("loop", "backward")()(x, saved, gy, gh, False)
    return all(_near(g, w) for g, w in zip(kernel(x, saved, gy, gh, False), want, strict=True))


def _anywhere(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64)


def _on_cpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and _anywhere(device, dtype)


def _forward_is_right(kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the forward pass works: compiling the backward for a probe takes ten seconds, and the forward pass
    already shows whether there is a compiler. If it fails later, it falls back to torch then."""
    return "triton" in available(FORWARD, FORWARD_CANDIDATES[:1], device, dtype)


def _on_gpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and _anywhere(device, dtype)


FORWARD_CANDIDATES = (
    Candidate("triton", _on_gpu, _load("triton", "forward"), _probe_forward),
    Candidate("numba", _on_cpu, _load("numba", "forward"), _probe_forward),
    Candidate("torch", _anywhere, _load("torch", "forward"), _probe_forward),
    Candidate("reference", _anywhere, _load("loop", "forward"), _probe_forward),
)
BACKWARD_CANDIDATES = (
    Candidate("triton", _on_gpu, _load("triton", "backward"), _forward_is_right),
    Candidate("numba", _on_cpu, _load("numba", "backward"), _probe_backward),
    Candidate("torch", _anywhere, _load("torch", "backward"), _probe_backward),
    Candidate("reference", _anywhere, _load("loop", "backward"), _probe_backward),
)
