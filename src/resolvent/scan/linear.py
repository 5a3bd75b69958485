"""The linear scan h_t = a_t h_{t-1} + b_t with gradients of every order.

With the upstream gradient g, the conjugate ‾ and the scan running forward, the gradients are again a linear scan:

    γ_t = ‾a_{t+1} γ_{t+1} + g_t        (a reverse scan)
    ∂b_t = γ_t,    ∂a_t = γ_t ‾h_{t-1},    ∂h0 = ‾a_0 γ_0

and so is the tangent, dh_t = a_t dh_{t-1} + (da_t h_{t-1} + db_t). Both are written with the operator itself, hence
every derivative exists. A first-order backward pass runs one fused kernel in place of this.

Eager calls go through an `autograd.Function`; compiled ones through the custom operator `resolvent::linear_scan`,
because the compiler cannot trace a Function that has its own tangent, and the operator costs more per call. (torch
does not differentiate a custom operator by `torch.func.grad` inside compiled code; `backward` and `vmap` work there.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from resolvent.scan import linear_border as border
from resolvent.scan.linear_kernels import backward_kernel, forward_kernel

_PLAIN = (Tensor, torch.nn.Parameter)  # fake tensors and other subclasses need an operator to dispatch on
Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """All states of h_t = a_t h_{t-1} + b_t along axis -2.

    a        broadcasts to the shape of b: (n,), (l, n), (..., 1, n), ...; a missing or size-1 time axis means that a
             does not change with time, which costs less.
    b        (..., l, n), real or complex.
    h0       the state before the first step; broadcasts to (..., n); zero when None.
    reverse  run from the last step to the first, h_t = a_t h_{t+1} + b_t.

    Returns h (..., l, n) in the common dtype of the inputs; the final state is h[..., -1, :], or h[..., 0, :] when
    reversed. bfloat16 and float16 are accumulated in float32. The same input gives the same bits, for any number of
    threads.

    >>> linear_scan(torch.tensor([0.5]), torch.ones(3, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    border.check(a, b, h0)
    if a.dim() != b.dim() or a.shape[-1] != b.shape[-1]:
        a = border.align(a, b)
    if h0 is not None and h0.shape != b.shape[:-2] + b.shape[-1:]:
        h0 = h0.expand(b.shape[:-2] + b.shape[-1:])
    if a.dtype == b.dtype and (h0 is None or h0.dtype == b.dtype) and (b.dtype not in border.HALF or b.is_cuda):
        return _scan(a, b, h0, reverse)  # on a GPU the kernels read and write half types themselves
    return _promoted(a, b, h0, reverse)


def _promoted(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """Bring mixed and half dtypes to one that the kernels know, and the result back."""
    result, inner = border.dtypes(a, b, h0)
    b = b.to(inner)
    h0 = None if h0 is None else h0.to(inner)
    if inner.is_complex and not a.is_complex():
        # a real multiplier acts on the real and imaginary parts alike: half the work of a complex one
        parts = _split(b)  # (..., l, 2n)
        twice = a.to(parts.dtype).unsqueeze(-1).expand(*a.shape, 2).flatten(-2)  # (..., l or 1, 2n)
        h = _scan(twice, parts, None if h0 is None else _split(h0), reverse)
        return torch.view_as_complex(h.unflatten(-1, (-1, 2)))
    return _scan(a.to(inner), b, h0, reverse).to(result)


def _split(z: Tensor) -> Tensor:
    """Complex (..., n) as real (..., 2n), real and imaginary parts in turn."""
    return torch.view_as_real(z.resolve_conj()).flatten(-2)


# -- routing -----------------------------------------------------------------------------------------------------------
# From here on a has the rank of b and differs from its shape in size-1 axes before the last only; h0 is (..., n).


def _scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    if torch.compiler.is_compiling() or type(b) not in _PLAIN:
        return _op(a, b, h0, reverse)
    if _transformed():
        return _Transformed.apply(a, b, h0, reverse)
    if _differentiated(a, b, h0):
        return _Eager.apply(a, b, h0, reverse)
    return _forward(a, b, h0, reverse)


def _differentiated(a: Tensor, b: Tensor, h0: Tensor | None) -> bool:
    """Whether autograd or forward-mode AD is watching."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (h0 is not None and h0.requires_grad)):
        return True
    return forward_ad._current_level >= 0


def _transformed() -> bool:
    return torch._C._are_functorch_transforms_active()


def _batched(*tensors: Tensor | None) -> bool:
    """Whether the older vmap is active, which `torch.autograd.grad(is_grads_batched=True)` still uses.

    It knows no rule of ours, but takes an operator apart into one call per sample.
    """
    return any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors)


def _forward(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    if _batched(a, b, h0):
        return _op(a, b, h0, reverse)
    if b.numel() == 0:
        return torch.empty_like(b, memory_format=torch.contiguous_format)
    return forward_kernel(b)(a, b, h0, reverse)


def _backward(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) without a graph, by the fused kernel."""
    if h.numel() == 0:
        return torch.zeros_like(a, memory_format=torch.contiguous_format), torch.empty_like(h)
    return backward_kernel(h)(g, a, h, h0, reverse)


# -- derivatives -------------------------------------------------------------------------------------------------------


def _previous(h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_{t-1} for every t, with h0 (or zero) before the first: (..., l, n)."""
    first = torch.zeros_like(h[..., :1, :]) if h0 is None else h0.unsqueeze(-2)
    return torch.cat((h[..., 1:, :], first), -2) if reverse else torch.cat((first, h[..., :-1, :]), -2)


def _adjoint(scan: Callable[..., Tensor], g: Tensor, a: Tensor, reverse: bool) -> Tensor:
    """γ: the scan of g in the other direction with the conjugate multiplier of the step after."""
    a = a.conj().resolve_conj()
    if a.shape[-2] > 1:
        a = a.roll(1 if reverse else -1, -2)  # what wraps around meets the zero state only
    return scan(a, g, None, not reverse)


def _initial_grad(gamma: Tensor, a: Tensor, reverse: bool) -> Tensor:
    """∂h0 (..., n)."""
    t = -1 if reverse else 0
    return a[..., t, :].conj() * gamma[..., t, :]


def _differentiable_grads(
    scan: Callable[..., Tensor], g: Tensor, saved: tuple[Tensor, Tensor, Tensor | None], reverse: bool
) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) as a graph of differentiable operations."""
    a, h, h0 = saved
    if h.numel() == 0:
        return torch.zeros_like(a), g
    gamma = _adjoint(scan, g, a, reverse)
    return (gamma * _previous(h, h0, reverse).conj()).sum_to_size(a.shape), gamma


def _save(ctx: Any, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> None:
    ctx.reverse = reverse
    ctx.save_for_backward(a, h, h0)
    if _transformed() or forward_ad._current_level >= 0:
        ctx.save_for_forward(a, h, h0)


def _backward_of(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    graph = torch.is_grad_enabled() or _transformed() or _batched(*grads)
    return (*_grads(_scan, None if graph else _backward, grads[0], ctx), None)


def _tangent_of(ctx: Any, *tangents: Any) -> Tensor:
    da, db, dh0, _ = tangents
    a, h, h0 = ctx.saved_tensors
    drive = torch.zeros_like(h) if db is None else db
    if da is not None and h.numel():
        drive = drive + da * _previous(h, h0, ctx.reverse)
    return _scan(a, drive, dh0, ctx.reverse)


class _Eager(torch.autograd.Function):
    """Without functorch: this form of a Function is several times cheaper to call than the other."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
        h = _forward(a, b, h0, reverse)
        _save(ctx, a, h, h0, reverse)
        return h

    backward = staticmethod(_backward_of)
    jvp = staticmethod(_tangent_of)


class _Transformed(torch.autograd.Function):
    """Under torch.func, which asks for a separate `setup_context`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
        return _forward(a, b, h0, reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, bool], output: Tensor) -> None:
        a, _, h0, reverse = inputs
        _save(ctx, a, output, h0, reverse)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _vmap(info, in_dims, *args)

    backward = staticmethod(_backward_of)
    jvp = staticmethod(_tangent_of)


def _grads(
    scan: Callable[..., Tensor], fused: Callable[..., tuple[Tensor, Tensor]] | None, g: Tensor, ctx: Any
) -> Grads:
    """(∂a, ∂b, ∂h0) as far as they are needed: by the fused kernel, or where it is None by a differentiable graph."""
    a, h, h0 = ctx.saved_tensors
    for_a, _, for_h0 = ctx.needs_input_grad[:3]
    ga = None
    if for_a and fused is not None:
        ga, gb = fused(g, a, h, h0, ctx.reverse)
    elif for_a:
        ga, gb = _differentiable_grads(scan, g, (a, h, h0), ctx.reverse)
    else:
        gb = _adjoint(scan, g, a, ctx.reverse)
    gh0 = None
    if for_h0:
        gh0 = _initial_grad(gb, a, ctx.reverse) if h.shape[-2] else torch.zeros_like(h0)
    return ga, gb, gh0


def _vmap(
    info: Any, in_dims: tuple[Any, ...], a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool
) -> tuple[Tensor, int]:
    """The mapped axis joins the leading ones; what is not mapped gets an axis of size 1."""

    def leading(x: Tensor, dim: int | None, size: int = 1) -> Tensor:
        return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)

    a = leading(a, in_dims[0])
    b = leading(b, in_dims[1], info.batch_size)
    h0 = None if h0 is None else leading(h0, in_dims[2], info.batch_size)
    return _scan(a, b, h0, reverse), 0


# -- the custom operators, for compiled code ---------------------------------------------------------------------------


@torch.library.custom_op("resolvent::linear_scan", mutates_args=())
def _op(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    return _forward(a, b, h0, reverse).contiguous()


@torch.library.custom_op("resolvent::linear_scan_backward", mutates_args=())
def _op_backward(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    ga, gb = _backward(g, a, h, h0, reverse)
    return ga.contiguous(), gb.contiguous()


@_op.register_fake
def _(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@_op_backward.register_fake
def _(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    fresh = torch.contiguous_format
    return torch.empty_like(a, memory_format=fresh), torch.empty_like(h, memory_format=fresh)


def _op_grads(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return (*_grads(_op, None if torch.is_grad_enabled() else _op_backward, g, ctx), None)


_op.register_autograd(_op_grads, setup_context=_Transformed.setup_context)
_op.register_vmap(_vmap)
