"""The public selective scan and its derivatives of every order.

Eager calls go through an `autograd.Function`, compiled ones through a custom operator: the compiler refuses a Function
with a forward-mode rule, and the operator costs more per call. Both run the same kernels. A backward pass that must
itself be differentiated uses `linear_scan` instead, whose derivatives of every order exist.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from resolvent.ops import plain
from resolvent.ops.library import one_by_one, separate
from resolvent.ops.linear_scan.packed import forgetting
from resolvent.ops.selective_scan import compose
from resolvent.ops.selective_scan import kernels as run
from resolvent.ops.selective_scan.inputs import Inputs, accumulator, cast, check, chunks
from resolvent.runtime.memory import resolve
from resolvent.runtime.transforms import forward_mode, is_batched, is_traced, is_transformed

Outputs = tuple[Tensor, Tensor, Tensor]  # y, the last state, the saved states


def selective_scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    h0: Tensor | None = None, reverse: bool = False, start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = (C_t . h_t + D u_t) silu(z_t). Mamba (Gu and Dao 2023), eq. 2.

    u, dt, z (b, l, d); A (d, n) real, of any sign; B, C (b, l, n), or (b, l, g, n) for g groups of d / g adjacent
    channels; D (d,); h0 (b, d, n). dt must be positive (softplus applied); dt = 0 keeps the state, which
    skips padding. Without z there is no gate.
    Returns y (b, l, d) in the dtype of u and the last state (b, d, n), the one at t = 0 when `reverse`. Half types
    accumulate in float32, and the last state is then float32. Every input may have a gradient of any order; the
    backward saves one state per 32 steps and recomputes the others. On a GPU it saves one per four, in bfloat16
    if u is of a half type: a fifth less time, and with n = 16 four times the memory of u.

    `start`, bool and broadcast to (b, l), marks the first steps (in time) of documents packed in a row
    (`packed_starts`). The state entering a marked step is zero; with `reverse` the one entering the step before a
    mark. Each document thus runs as if alone, in both directions. h0 enters the first document of the scan, unless that
    step is marked itself; the last state is that of the scan's last document.

    Examples:
        >>> u, dt = torch.randn(1, 10, 4), torch.rand(1, 10, 4)
        >>> B, C = torch.randn(2, 1, 10, 8).unbind()
        >>> y, last = rv.selective_scan(u, dt, -torch.rand(4, 8), B, C)
        >>> y.shape, last.shape
        (torch.Size([1, 10, 4]), torch.Size([1, 4, 8]))
    """
    if isinstance(B, Tensor) and isinstance(C, Tensor) and 4 in (B.ndim, C.ndim):
        return _scan_groups(Inputs(u, dt, A, B, C, D, z, h0), reverse, start)
    x = _resolve(Inputs(u, dt, A, B, C, D, z, h0))
    check(x)
    reset = None if start is None else _forgetting(start, u, reverse)
    if u.shape[1] == 0:
        return u.clone(), _empty_last(x)
    save = _wants_gradient(x)
    if is_traced(u):
        return _record(x, reverse, save, reset)
    if save or _is_transformed(*x, reset) or forward_mode():
        return _SelectiveScan.apply(*x, reset, reverse, save)[:2]
    return run.forward(x, reverse, False, reset)[:2]


def _record(x: Inputs, reverse: bool, save: bool, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """As one opaque node, or inside `plain_operations()` as torch operations."""
    if plain.is_chosen():
        y, last = compose.scan(cast(x, accumulator(x)), reverse, reset)
        return y.to(x.u.dtype), last
    return _operator(*x, reverse, save, reset)[:2]


def _scan_groups(x: Inputs, reverse: bool, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """One scan per group of channels."""
    groups = {t.shape[2] for t in (x.B, x.C) if t.ndim == 4}
    d, g = x.u.shape[-1], max(groups)
    if len(groups) > 1 or not g or d % g:
        shapes = f"B {tuple(x.B.shape)} and C {tuple(x.C.shape)}"
        raise ValueError(f"selective_scan: expected one number of groups that divides the {d} channels, got {shapes}.")
    parts = []
    for i in range(g):
        own = slice(i * (d // g), (i + 1) * (d // g))
        B, C = (t[:, :, i] if t.ndim == 4 else t for t in (x.B, x.C))
        D = None if x.D is None else x.D[own]
        z, h0 = (None if x.z is None else x.z[..., own]), (None if x.h0 is None else x.h0[:, own])
        parts.append(selective_scan(x.u[..., own], x.dt[..., own], x.A[own], B, C, D, z, h0, reverse, start))
    return torch.cat([y for y, _ in parts], -1), torch.cat([h for _, h in parts], 1)


def _resolve(x: Inputs) -> Inputs:
    return x if torch.compiler.is_compiling() else Inputs(*(resolve(t) if isinstance(t, Tensor) else t for t in x))  # type: ignore[arg-type]


def _forgetting(start: Tensor, u: Tensor, reverse: bool) -> Tensor:
    return forgetting("selective_scan", start, u.shape[:2], u.device, reverse).expand(u.shape[:2])  # (b, l)


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
        *tensors, reset, reverse, save = args
        return run.forward(Inputs(*tensors), reverse, save, reset, often=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, ctx.reverse, _ = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.save_for_forward(*tensors, output[2])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, reset, saved = ctx.saved_tensors
        x = Inputs(*tensors)
        if torch.is_grad_enabled() or _is_transformed(gy, gh):
            return *_differentiable_adjoint(x, gy, gh, ctx.reverse, reset), None, None, None
        return *run.backward(x, saved, gy, gh, ctx.reverse, reset), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor, None]:
        x = Inputs(*ctx.saved_tensors[:8])
        dtype = accumulator(x)
        reset = ctx.saved_tensors[8]
        dy, dh = compose.tangent(cast(x, dtype), cast(Inputs(*tangents[:8]), dtype), ctx.reverse, reset)
        return dy.to(x.u.dtype), dh, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Outputs, tuple[int, int, int]]:
        *given, reverse, _ = args
        dims = in_dims[:9]
        if dims[2] is None and dims[5] is None:  # A and D
            return _fold(given, dims, info.batch_size, reverse), (0, 0, 0)
        each = [_scan_all(_pick(given, dims, i), reverse) for i in range(info.batch_size)]
        y, h, saved = (torch.stack(parts) for parts in zip(*each, strict=True))
        return (y, h, saved), (0, 0, 0)


# `apply` binds its arguments to this signature on every call, and recomputes it unless it is stored.
_SelectiveScan.forward.__signature__ = inspect.signature(_SelectiveScan.forward)  # type: ignore[attr-defined]


def _is_transformed(*tensors: Tensor | None) -> bool:
    """Whether `torch.func`, or the older vmap of `torch.autograd.grad(is_grads_batched=True)`, is active."""
    return is_transformed() or is_batched(*tensors)


def _scan_all(given: list[Any], reverse: bool) -> Outputs:
    """The scan from the inputs and `reset`, the last of them."""
    return _SelectiveScan.apply(*given, reverse, _wants_gradient(Inputs(*given[:8])))


def _fold(given: list[Any], dims: tuple[Any, ...], size: int, reverse: bool) -> Outputs:
    """A mapped axis over all inputs but A and D is merged into the batch."""

    def fold(tensor: Any, dim: Any) -> Any:
        if tensor is None:
            return None
        front = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return front.flatten(0, 1)

    folded = [t if k in (2, 5) else fold(t, dim) for k, (t, dim) in enumerate(zip(given, dims, strict=True))]
    y, h, saved = (out.unflatten(0, (size, -1)) for out in _scan_all(folded, reverse))
    return y, h, saved


def _pick(given: list[Any], dims: tuple[Any, ...], i: int) -> list[Any]:
    return [t if dim is None or t is None else t.select(dim, i) for t, dim in zip(given, dims, strict=True)]


def _differentiable_adjoint(
    x: Inputs, gy: Tensor | None, gh: Tensor | None, reverse: bool, reset: Tensor | None
) -> list[Tensor | None]:
    wide = cast(x, accumulator(x))
    gy = torch.zeros_like(wide.u) if gy is None else gy.to(wide.u.dtype)
    gh = wide.u.new_zeros(x.u.shape[0], *x.A.shape) if gh is None else gh
    gradients = compose.adjoint(wide, gy, gh, reverse, reset)
    return [None if p is None or g is None else g.to(p.dtype) for p, g in zip(x, gradients, strict=True)]


# -- compiled ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("resolvent::selective_scan", mutates_args=())
def _operator(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, h0: Tensor | None,
    reverse: bool, save: bool, reset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    y, last, saved = run.forward(Inputs(u, dt, A, B, C, D, z, h0), reverse, save, reset)
    row = (saved.mT if u.is_cuda else saved).flatten(1)
    return y.contiguous(), last.contiguous(), F.pad(row, (0, 1)) if A.numel() == 1 else row


@_operator.register_fake
def _(*args: Any) -> Outputs:
    """The saved states as one row per sequence: their number is multiplied by a size that is never 1."""
    x, save = Inputs(*args[:8]), args[9]
    (b, l, d), n = x.u.shape, x.A.shape[1]
    last = x.u.new_empty(b, *x.A.shape, dtype=accumulator(x))
    count = chunks(l) if save else 0
    return x.u.new_empty(b, l, d), last, last.new_empty(b, count * d * n + (1 if d * n == 1 else 0))


def _unpack_states(row: Tensor, x: Inputs) -> Tensor:
    """The saved states (b, chunks, n, d) from their rows."""
    d, n = x.A.shape
    row = row[:, :-1] if d * n == 1 else row
    return row.reshape(row.shape[0], -1, d, n).mT if x.u.is_cuda else row.reshape(row.shape[0], -1, n, d)


@torch.library.custom_op("resolvent::selective_scan_backward", mutates_args=())
def _operator_backward(
    inputs: list[Tensor],
    present: list[bool],
    saved: Tensor,
    gy: Tensor,
    gh: Tensor,
    reverse: bool,
    reset: Tensor | None,
) -> list[Tensor]:
    x = _unpack(inputs, present)
    gradients = run.backward(x, _unpack_states(saved, x), gy, gh, reverse, reset)
    return separate([g for g in gradients if g is not None], *inputs, gy, gh)


@_operator_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in inputs]


def _unpack(tensors: list[Tensor], present: list[bool]) -> Inputs:
    """Restore the absent inputs, which an operator's list cannot contain."""
    rest = iter(tensors)
    values: list[Any] = [next(rest) if there else None for there in present]
    return Inputs(*values)


def _operator_setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.reverse, _, reset = inputs
    ctx.save_for_backward(*tensors, reset, output[2])


def _operator_adjoint(ctx: Any, gy: Tensor, gh: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, reset, saved = ctx.saved_tensors
    if torch.is_grad_enabled():
        return *_differentiable_adjoint(Inputs(*tensors), gy, gh, ctx.reverse, reset), None, None, None
    present = [t is not None for t in tensors]
    given = [t for t in tensors if t is not None]
    gradients = _operator_backward(given, present, saved, gy, gh, ctx.reverse, reset)
    return *_unpack(gradients, present), None, None, None


_operator.register_autograd(_operator_adjoint, setup_context=_operator_setup)
one_by_one(_operator)
one_by_one(_operator_backward)
