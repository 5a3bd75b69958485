"""The scan of S5 and LRU between its two products, y = W_out scan(lam, W_in x), channels first and time last.

x and y are (d, b, l), W_in (2p, d), W_out (d, 2p) and lam (p, 2) in real pairs, as in `constant`. On a GPU in
bfloat16 one kernel does all three and the states stay on chip; its program processes a whole sequence, so small
batches, which would leave the device idle, and tables that do not fit use two products and `constant_scan`.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.linear_scan.constant import constant_reference, constant_scan
from resolvent.runtime.dispatch import Candidate, choose, everywhere, lazily, nothing, use
from resolvent.runtime.fallback import left_to_torch
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import gradients_by_graph, outside_autocast

FEWEST = 96  # sequences; with fewer, one program per sequence is slower than three passes over memory
STATES = 17, 128  # complex ones: with fewer, the padding of the tables costs more than passes over few states
CHANNELS = 128  # with more, the tables leave no room for a second program per multiprocessor
CLOSE = 2e-2  # tolerance in bfloat16
FUSED = "the scan between two products"


def projected_scan(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> Tensor:
    """y (d, b, l) in the dtype of x; states are in float32, products use the given dtypes."""
    return fork_scan(lam, W_in, W_out, x)[0]


def fork_scan(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """y, and x for other uses: the gradients of both are added in the kernel's store."""
    inputs = lam, W_in, W_out, x
    if not _suits(*inputs) or _triton(x) is None:
        return run_unfused(*inputs), x
    found = attempt("projected_scan", lambda: _ProjectedScan.apply(*inputs), lambda: (run_unfused(*inputs), x))
    return found[0], found[1]


def run_unfused(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> Tensor:
    """A product, a scan along time, a product: every dtype and device."""
    return _product(W_out, constant_scan(lam, _product(W_in, x)))


def projected_reference(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> Tensor:
    """The reference: the scan over complex numbers."""
    return _product(W_out, constant_reference(lam, _product(W_in, x)))


def _product(W: Tensor, x: Tensor) -> Tensor:
    return (W @ x.flatten(1)).view(-1, *x.shape[1:])


# -- where one kernel applies -----------------------------------------------------------------------------------------


def _suits(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> bool:
    """By shape and dtype: enough sequences, tables that fit, 31-bit offsets within a sequence."""
    found = _unfit(lam, W_in, W_out, x)
    if found is not None and x.numel():
        left_to_torch(x, FUSED, *found)
    return found is None


def _unfit(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> tuple[str, int] | None:
    """Why it is not supported, and whether by choice."""
    (d, b, l), p = x.shape, lam.shape[0]
    if W_in.dtype != x.dtype or W_out.dtype != x.dtype:
        return "tables of another dtype than its input", logging.WARNING
    if d > CHANNELS or W_out.shape[0] != d:
        return f"more than {CHANNELS} channels, or other ones out than in", logging.WARNING
    if p > STATES[1]:
        return f"more than {STATES[1]} complex states", logging.WARNING
    if l * max(x.stride(2), 2 * p) >= 2**31:
        return "2^31 numbers or more in a sequence", logging.WARNING
    if b < FEWEST or p < STATES[0] or not l:  # two products and a scan are faster
        return f"fewer than {FEWEST} sequences, or than {STATES[0]} states", logging.INFO
    return None


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    if not x.is_cuda:
        return None
    if x.dtype != torch.bfloat16:
        return left_to_torch(x, FUSED, str(x.dtype), logging.INFO)
    if choose("projected_scan", CANDIDATES, x.device, x.dtype) is nothing:
        return None
    return _load()


_load = lazily("ops.projected_scan.triton")


def _probe(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Values and the input gradient over slightly more than a tile."""
    d, p, l = 5, 3, 72
    angle = torch.arange(1, p + 1, device=device, dtype=torch.float64)
    lam = torch.view_as_real(torch.polar(1 - 0.1 * angle, angle))
    W_in, W_out, x = (_wave(shape, device).to(dtype) for shape in ((2 * p, d), (d, 2 * p), (d, 2, l)))
    with use("torch"), torch.enable_grad():
        wide = x.double().requires_grad_()
        y = projected_reference(lam, W_in.double(), W_out.double(), wide)
        gx = torch.autograd.grad(y, wide, wide.detach())[0]
    w = kernel.Tables(lam.float(), W_in, W_out)
    pairs = (kernel.forward(w, x), y), (kernel.input_gradient(w, x, x), gx + x.double())
    return all(bool((got.double() - want).norm() <= CLOSE * want.norm()) for got, want in pairs)


def _wave(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers without a pattern that could hide a wrong index."""
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(n, device=device, dtype=torch.float64) ** 1.5 + 1).reshape(shape)


CANDIDATES = (
    Candidate("triton", lambda device, dtype: device.type == "cuda" and dtype == torch.bfloat16, _load, _probe),
    *everywhere(nothing),
)


# -- autograd ----------------------------------------------------------------------------------------------------------


class _ProjectedScan(torch.autograd.Function):
    """Saves its inputs only: a backward pass for x needs nothing else, one for the tables recomputes the states."""

    @staticmethod
    def forward(ctx: Any, lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kernels = _triton(x)
        y: Tensor = kernels.forward(kernels.Tables(lam, W_in, W_out), x)
        ctx.save_for_backward(lam, W_in, W_out, x)
        ctx.set_materialize_grads(False)
        return y, x

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, (g, beside), needs = ctx.saved_tensors, gradients, ctx.needs_input_grad
        if g is None:
            return None, None, None, beside

        def by_graph() -> tuple[Tensor | None, ...]:
            return gradients_by_graph(lambda *t: (run_unfused(*t), t[3]), inputs, (g, beside), needs)

        if torch.is_grad_enabled():
            return by_graph()
        *tables, x = inputs
        kernels = _triton(x)
        w = kernels.Tables(*tables)
        if not any(needs[:3]):
            gx = attempt("projected_scan_adjoint", lambda: kernels.input_gradient(w, g, beside), lambda: by_graph()[3])
            return None, None, None, gx
        found = attempt("projected_scan_gradients", lambda: kernels.gradients(w, x, g, beside), by_graph)
        return tuple(t if need else None for t, need in zip(found, needs, strict=True))
