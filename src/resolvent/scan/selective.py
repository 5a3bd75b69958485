"""The public selective scan and its derivatives of every order.

Eager calls go through an `autograd.Function`, compiled ones through a custom operator: the compiler refuses a Function
with a forward-mode rule, and the operator costs more per call. Both run the same kernels. A backward pass that must
itself be differentiated is written with `linear_scan` instead, whose derivatives of every order exist.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from resolvent.scan import selective_compose as compose
from resolvent.scan import selective_run as run
from resolvent.scan.selective_inputs import Inputs, accumulator, cast, check, states_to_save

Outputs = tuple[Tensor, Tensor, Tensor]  # y, the last state, the saved states
_PLAIN = (Tensor, torch.nn.Parameter)  # fake tensors and other subclasses need an operator to dispatch on


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    h0: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = (C_t . h_t + D u_t) silu(z_t). Mamba (Gu and Dao 2023), eq. 2.

    u, dt, z (b, l, d); A (d, n) real, of any sign; B, C (b, l, n); D (d,); h0 (b, d, n). dt comes positive from the
    caller (softplus applied); dt = 0 holds the state, which is how padding is skipped. Without z there is no gate.
    Returns y (b, l, d) in the dtype of u and the last state (b, d, n), the one at t = 0 when `reverse`. Half types
    accumulate in float32, and the last state then is float32. Every input may carry a gradient of any order; the
    backward keeps one state per 32 steps and computes the others again.
    """
    x = Inputs(u, dt, A, B, C, D, z, h0)
    check(x)
    if u.shape[1] == 0:
        return u.clone(), _empty_last(x)
    save = _wants_gradient(x)
    if torch.compiler.is_compiling() or type(u) not in _PLAIN:
        return _operator(*x, reverse, save)[:2]
    if save or _transformed(*x) or forward_ad._current_level >= 0:
        return _SelectiveScan.apply(*x, reverse, save)[:2]
    return run.forward(x, reverse, False)[:2]


def _empty_last(x: Inputs) -> Tensor:
    if x.h0 is None:
        return x.u.new_zeros(x.u.shape[0], *x.A.shape, dtype=accumulator(x))
    return x.h0.to(accumulator(x), copy=True)


def _wants_gradient(x: Inputs) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in x)


# -- eager -------------------------------------------------------------------------------------------------------------


class _SelectiveScan(Function):
    @staticmethod
    def forward(*args: Any) -> Outputs:
        *tensors, reverse, save = args
        return run.forward(Inputs(*tensors), reverse, save)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, ctx.reverse, _ = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.save_for_forward(*tensors, output[2])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, saved = ctx.saved_tensors
        x = Inputs(*tensors)
        if torch.is_grad_enabled() or _transformed(gy, gh):
            return *_differentiable_adjoint(x, gy, gh, ctx.reverse), None, None
        return *run.backward(x, saved, gy, gh, ctx.reverse), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, None]:
        x = Inputs(*ctx.saved_tensors[:8])
        dtype = accumulator(x)
        dy, dh = compose.tangent(cast(x, dtype), cast(Inputs(*tangents[:8]), dtype), ctx.reverse)
        return dy.to(x.u.dtype), dh, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Outputs, tuple[int, int, int]]:
        *tensors, reverse, _ = args
        x = Inputs(*tensors)
        dims: Any = Inputs(*in_dims[:8])
        if dims.A is None and dims.D is None:
            return _fold(x, dims, info.batch_size, reverse), (0, 0, 0)
        each = [_scan_all(_pick(x, dims, i), reverse) for i in range(info.batch_size)]
        y, h, saved = (torch.stack(parts) for parts in zip(*each, strict=True))
        return (y, h, saved), (0, 0, 0)


# `apply` binds its arguments to this signature on every call, and finds it out anew unless it is kept.
_SelectiveScan.forward.__signature__ = inspect.signature(_SelectiveScan.forward)  # type: ignore[attr-defined]


def _transformed(*tensors: Tensor | None) -> bool:
    """Whether `torch.func`, or the older vmap of `torch.autograd.grad(is_grads_batched=True)`, is at work."""
    if torch._C._are_functorch_transforms_active():
        return True
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def _scan_all(x: Inputs, reverse: bool) -> Outputs:
    return _SelectiveScan.apply(*x, reverse, _wants_gradient(x))


def _fold(x: Inputs, dims: Any, size: int, reverse: bool) -> Outputs:
    """A further axis over all but A and D is more batch."""

    def fold(tensor: Any, dim: Any) -> Any:
        if tensor is None:
            return None
        front = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return front.flatten(0, 1)

    folded = Inputs(*map(fold, x, dims))._replace(A=x.A, D=x.D)
    y, h, saved = (out.unflatten(0, (size, -1)) for out in _scan_all(folded, reverse))
    return y, h, saved


def _pick(x: Inputs, dims: Any, i: int) -> Inputs:
    values: list[Any] = [t if dim is None or t is None else t.select(dim, i) for t, dim in zip(x, dims, strict=True)]
    return Inputs(*values)


def _differentiable_adjoint(x: Inputs, gy: Tensor | None, gh: Tensor | None, reverse: bool) -> list[Tensor | None]:
    wide = cast(x, accumulator(x))
    gy = torch.zeros_like(wide.u) if gy is None else gy.to(wide.u.dtype)
    gh = wide.u.new_zeros(x.u.shape[0], *x.A.shape) if gh is None else gh
    gradients = compose.adjoint(wide, gy, gh, reverse)
    return [None if p is None or g is None else g.to(p.dtype) for p, g in zip(x, gradients, strict=True)]


# -- compiled ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("resolvent::selective_scan", mutates_args=())
def _operator(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    h0: Tensor | None,
    reverse: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return run.forward(Inputs(u, dt, A, B, C, D, z, h0), reverse, save)


@_operator.register_fake
def _(*args: Any) -> Outputs:
    *tensors, _, save = args
    x = Inputs(*tensors)
    last = x.u.new_empty(x.u.shape[0], *x.A.shape, dtype=accumulator(x))
    return x.u.new_empty(x.u.shape), last, states_to_save(x, save)


@torch.library.custom_op("resolvent::selective_scan_backward", mutates_args=())
def _operator_backward(
    inputs: list[Tensor], present: list[bool], saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool
) -> list[Tensor]:
    gradients = run.backward(_unpack(inputs, present), saved, gy, gh, reverse)
    return [g for g in gradients if g is not None]


@_operator_backward.register_fake
def _(inputs: list[Tensor], present: list[bool], saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in inputs]


def _unpack(tensors: list[Tensor], present: list[bool]) -> Inputs:
    """The inverse of leaving the absent ones out, which an operator's list cannot hold."""
    rest = iter(tensors)
    values: list[Any] = [next(rest) if there else None for there in present]
    return Inputs(*values)


def _operator_setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.reverse, _ = inputs
    ctx.save_for_backward(*tensors, output[2])


def _operator_adjoint(ctx: Any, gy: Tensor, gh: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, saved = ctx.saved_tensors
    present = [t is not None for t in tensors]
    given = [t for t in tensors if t is not None]
    gradients = _operator_backward(given, present, saved, gy, gh, ctx.reverse)
    return *_unpack(gradients, present), None, None


_operator.register_autograd(_operator_adjoint, setup_context=_operator_setup)
