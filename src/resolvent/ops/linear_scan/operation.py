"""The linear scan h_t = a_t h_{t-1} + b_t with gradients of every order.

With the upstream gradient g, the conjugate ‾ and the scan running forward, the gradients are again a linear scan:

    γ_t = ‾a_{t+1} γ_{t+1} + g_t        (a reverse scan)
    ∂b_t = γ_t,    ∂a_t = γ_t ‾h_{t-1},    ∂h0 = ‾a_0 γ_0

and so is the tangent, dh_t = a_t dh_{t-1} + (da_t h_{t-1} + db_t). Both use the operator itself, hence
every derivative exists. A first-order backward pass runs one fused kernel instead.

Eager calls go through an `autograd.Function`; compiled ones through the custom operator `resolvent::linear_scan`,
because the compiler cannot trace a Function that has its own tangent, and the operator costs more per call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.library import fresh
from resolvent.ops.linear_scan import checks
from resolvent.ops.linear_scan.adjoint import gradients, previous
from resolvent.ops.linear_scan.kernels import backward_kernel, forward_kernel, marked_backward, marked_forward
from resolvent.ops.linear_scan.packed import clear_starts, forgetting
from resolvent.ops.pairs import reals
from resolvent.runtime.memory import resolve
from resolvent.runtime.transforms import forward_mode, is_batched, is_traced, is_transformed


def linear_scan(
    a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False, start: Tensor | None = None
) -> Tensor:
    """All states of h_t = a_t h_{t-1} + b_t along axis -2.

    a        broadcasts to the shape of b: (n,), (l, n), (..., 1, n), ...; a missing or size-1 time axis means that a
             is constant in time, which is cheaper.
    b        (..., l, n), real or complex.
    h0       the state before the first step; broadcasts to (..., n); zero when None.
    reverse  run from the last step to the first, h_t = a_t h_{t+1} + b_t.
    start    bool, broadcasts to (..., l): the first steps (in time) of documents packed in a row (`packed_starts`). The
             state entering a marked step is zero, by setting a_t to 0; reversed, the one entering the step
             before a mark. Each document thus runs as if alone, in both directions; only NaN and infinity, times 0,
             cross a mark. h0 enters the first document of the scan, unless that step is marked itself.

    Returns h (..., l, n) in the common dtype of the inputs; the final state is h[..., -1, :], or h[..., 0, :] when
    reversed. bfloat16 and float16 are accumulated in float32. Results are deterministic, bit for bit, for any number of
    threads.

    >>> rv.linear_scan(torch.tensor([0.5]), torch.ones(3, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    checks.check(a, b, h0)
    a, b, h0 = resolve(a), resolve(b), None if h0 is None else resolve(h0)
    if a.dim() != b.dim() or a.shape[-1] != b.shape[-1]:
        a = checks.align(a, b)
    if h0 is not None and h0.shape != b.shape[:-2] + b.shape[-1:]:
        h0 = h0.expand(b.shape[:-2] + b.shape[-1:])
    reset = None if start is None else forgetting("linear_scan", start, b.shape[:-1], b.device, reverse)
    if a.dtype == b.dtype and (h0 is None or h0.dtype == b.dtype) and (b.dtype not in checks.HALF or b.is_cuda):
        return _scan(a, b, h0, reverse, reset)  # on a GPU the kernels read and write half types themselves
    return _run_promoted(a, b, h0, reverse, reset)


def _run_promoted(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None) -> Tensor:
    """Bring mixed and half dtypes to one supported by the kernels, and convert the result back."""
    result, inner = checks.dtypes(a, b, h0)
    b = b.to(inner)
    h0 = None if h0 is None else h0.to(inner)
    if inner.is_complex and not a.is_complex():
        # a real multiplier acts on the real and imaginary parts alike: half the work of a complex one
        parts = reals(b)  # (..., l, 2n)
        twice = a.to(parts.dtype).unsqueeze(-1).expand(*a.shape, 2).flatten(-2)  # (..., l or 1, 2n)
        h = _scan(twice, parts, None if h0 is None else reals(h0), reverse, reset)
        return torch.view_as_complex(h.unflatten(-1, (-1, 2)))
    return _scan(a.to(inner), b, h0, reverse, reset).to(result)


# -- routing -----------------------------------------------------------------------------------------------------------
# From here on a has the rank of b and differs from its shape in size-1 axes before the last only; h0 is (..., n).
# `reset`, if given, says where the state is reset: (..., l), its other axes of b's size or 1. Kernels for
# a GPU take it directly; for others, and under torch.func, a is set to zero here.


def _scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None) -> Tensor:
    if reset is not None and not b.is_cuda:
        a, reset = clear_starts(a, reset), None
    if is_traced(b):
        if plain.is_chosen():
            return plain.varying_scan(a if reset is None else clear_starts(a, reset), b, h0, reverse)
        return _op(a, b, h0, reverse, reset)
    if is_transformed():
        return _Transformed.apply(a if reset is None else clear_starts(a, reset), b, h0, reverse, None)
    if _is_differentiated(a, b, h0):
        return _Eager.apply(a, b, h0, reverse, reset)
    return forward_states(a, b, h0, reverse, reset)


def _is_differentiated(a: Tensor, b: Tensor, h0: Tensor | None) -> bool:
    """Whether autograd or forward-mode AD is recording."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (h0 is not None and h0.requires_grad)):
        return True
    return forward_mode()


def forward_states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None) -> Tensor:
    """The states without a graph, by the kernel for this device."""
    if is_batched(a, b, h0, reset):
        return _op(a, b, h0, reverse, reset)
    if b.numel() == 0:
        return torch.empty_like(b, memory_format=torch.contiguous_format)
    if reset is not None:
        return marked_forward(forward_kernel(b), a, b, h0, reverse, reset)
    return forward_kernel(b)(a, b, h0, reverse)


def backward_states(
    g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) without a graph, by the fused kernel."""
    if h.numel() == 0:
        return torch.zeros_like(a, memory_format=torch.contiguous_format), torch.empty_like(h)
    if reset is not None:
        return marked_backward(backward_kernel(h), g, a, h, h0, reverse, reset)
    return backward_kernel(h)(g, a, h, h0, reverse)


# -- derivatives -------------------------------------------------------------------------------------------------------


def _save(ctx: Any, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None) -> None:
    ctx.reverse = reverse
    ctx.save_for_backward(a, h, h0, reset)
    if is_transformed() or forward_mode():
        ctx.save_for_forward(a, h, h0, reset)


def _backward_of(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    graph = torch.is_grad_enabled() or is_transformed() or is_batched(*grads)
    return (*gradients(_scan, None if graph else backward_states, grads[0], ctx), None, None)


def _tangent_of(ctx: Any, *tangents: Any) -> Tensor:
    da, db, dh0 = tangents[:3]
    a, h, h0, reset = ctx.saved_tensors
    drive = torch.zeros_like(h) if db is None else db
    if da is not None and h.numel():
        moved = da * previous(h, h0, ctx.reverse)
        drive = drive + (moved if reset is None else clear_starts(moved, reset))
    return _scan(a, drive, dh0, ctx.reverse, reset)


class _Eager(torch.autograd.Function):
    """Without functorch: this form of a Function is several times cheaper to call."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None) -> Tensor:
        h = forward_states(a, b, h0, reverse, reset)
        _save(ctx, a, h, h0, reverse, reset)
        return h

    backward = staticmethod(_backward_of)
    jvp = staticmethod(_tangent_of)


class _Transformed(torch.autograd.Function):
    """Under torch.func, which requires a separate `setup_context`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None) -> Tensor:
        return forward_states(a, b, h0, reverse, reset)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, h0, reverse, reset = inputs
        _save(ctx, a, output, h0, reverse, reset)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _vmap(info, in_dims, *args)

    backward = staticmethod(_backward_of)
    jvp = staticmethod(_tangent_of)


def _vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    a: Tensor,
    b: Tensor,
    h0: Tensor | None,
    reverse: bool,
    reset: Tensor | None = None,
) -> tuple[Tensor, int]:
    """The mapped axis joins the leading ones; unmapped ones get an axis of size 1."""

    def leading(x: Tensor, dim: int | None, size: int = 1) -> Tensor:
        return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)

    a = leading(a, in_dims[0])
    b = leading(b, in_dims[1], info.batch_size)
    h0 = None if h0 is None else leading(h0, in_dims[2], info.batch_size)
    return _scan(a, b, h0, reverse, None if reset is None else leading(reset, in_dims[4])), 0


# -- the custom operators, for compiled code ---------------------------------------------------------------------------


@torch.library.custom_op("resolvent::linear_scan", mutates_args=())
def _op(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None) -> Tensor:
    return forward_states(a, b, h0, reverse, reset).contiguous()


@torch.library.custom_op("resolvent::linear_scan_backward", mutates_args=())
def _op_backward(
    g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    ga, gb = backward_states(g, a, h, h0, reverse, reset)
    return ga.contiguous(), gb.contiguous()


_op.register_fake(lambda a, b, *rest: fresh(b))
_op_backward.register_fake(lambda g, a, h, *rest: fresh(a, h))


def _op_grads(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return (*gradients(_op, None if torch.is_grad_enabled() else _op_backward, g, ctx), None, None)


_op.register_autograd(_op_grads, setup_context=_Transformed.setup_context)
_op.register_vmap(_vmap)
