"""S6 from its input on, preceded by Mamba's short convolution if there are taps: one graph node each way.

    h, z = halves of x,    u = silu(taps * h)                                or without taps u = x
    (s, B, C) = x_proj u,    dt = softplus(dt_proj s + dt_bias)
    y, last = selective_scan(u, dt, A, B, C, D, z, h0)

Saved are x, (s, B, C) and the scan's saved states. u and dt_proj s are recomputed in the backward, at a hundredth of
the time and a saving of a third of the memory, and the gradients of h and z are written into one array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.ops.pointwise.conv_silu import conv_silu, conv_silu_gradients, plain_conv_silu
from resolvent.ops.selective_scan import kernels as run
from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.ops.selective_scan.operation import selective_scan
from resolvent.runtime import transforms
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast


class Given(NamedTuple):
    """The inputs of a selection: x, x_proj and dt_proj in one dtype, the others in their own.

    dt_bias is added in its own dtype: rounding it to bfloat16 would change every dt by a hundredth.
    """

    x: Tensor  # (b, l, d), or with taps [h, z] (b, l, 2d)
    z: Tensor | None  # (b, l, d) gate
    taps: Tensor | None  # (d, w)
    tap_bias: Tensor | None  # (d,)
    x_proj: Tensor  # (r + 2n, d)
    dt_proj: Tensor  # (d, r)
    dt_bias: Tensor  # (d,)
    A: Tensor  # (d, n)
    D: Tensor  # (d,)
    h0: Tensor | None = None  # (b, d, n)


def selected_scan(
    given: Given, into: torch.dtype, padding: Tensor | None = None, often: bool = False
) -> tuple[Tensor, Tensor]:
    """y (b, l, d) in the dtype `into` and the last state (b, d, n); where `padding` (b, l, 1) the state is kept.

    `often`: trade memory for time, see `kernels.forward`.
    """
    if not transforms.is_untransformed() or transforms.is_traced(given.x):
        return _plain(given, into, padding)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        found: tuple[Tensor, Tensor] = _Selected.apply(into, padding, often, *given)
        return found
    y, last, *_ = _forward(given, into, padding, None)
    return y, last


def _plain(given: Given, into: torch.dtype, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in operations with derivatives of every order."""
    u, z = given.x, given.z
    if given.taps is not None and given.tap_bias is not None:
        h, z = u.chunk(2, -1)
        u = plain_conv_silu(h, given.taps, given.tap_bias)
    s, B, C = _split(given, F.linear(u, given.x_proj))
    dt = F.softplus(F.linear(s, given.dt_proj) + given.dt_bias)
    dt = dt if padding is None else dt.masked_fill(padding, 0)
    y, last = selective_scan(u, dt, given.A, B, C, given.D, z, given.h0)
    return y.to(into), last


def _split(given: Given, mixed: Tensor) -> Any:
    n = given.A.shape[1]
    return mixed.split([given.dt_proj.shape[1], n, n], -1)


def _forward(given: Given, into: torch.dtype, padding: Tensor | None, often: bool | None) -> tuple[Tensor, ...]:
    """y, the last state, the saved ones and (s, B, C). `often` is None where no state is saved."""
    u, z = _inner(given)
    mixed = F.linear(u, given.x_proj)
    x = _inputs(given, u, z, mixed, padding)
    return *run.forward(x, False, often is not None, None, given.dt_bias, into, bool(often)), mixed


def _inner(given: Given) -> tuple[Tensor, Tensor | None]:
    """The scan's input and gate."""
    if given.taps is None or given.tap_bias is None:
        return given.x, given.z
    h, z = given.x.chunk(2, -1)
    return conv_silu(h, given.taps, given.tap_bias), z


def _inputs(given: Given, u: Tensor, z: Tensor | None, mixed: Tensor, padding: Tensor | None) -> Inputs:
    """The scan's inputs, with dt before its bias and softplus; a zero step is then minus infinity."""
    s, B, C = _split(given, mixed)
    raw = F.linear(s, given.dt_proj)
    if padding is not None:
        raw = raw.masked_fill_(padding, -torch.inf)
    return Inputs(u, raw, given.A, B, C, given.D, z, given.h0)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, into: torch.dtype, padding: Tensor | None, often: bool, *given: Any) -> tuple[Tensor, Tensor]:
        y, last, saved, mixed = _forward(Given(*given), into, padding, often)
        ctx.into = into
        ctx.save_for_backward(*given, padding, saved, mixed)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, gy: Tensor | None, gh: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, padding, saved, mixed = ctx.saved_tensors
        given, needs = Given(*tensors), ctx.needs_input_grad[3:]
        if by_graph_only(gy, gh):
            plain = lambda *t: _plain(Given(*t), ctx.into, padding)  # noqa: E731
            return None, None, None, *gradients_by_graph(plain, given, (gy, gh), needs)
        return None, None, None, *_gradients(given, padding, saved, mixed, (gy, gh), needs)


def _gradients(
    given: Given, padding: Tensor | None, saved: Tensor, mixed: Tensor, g: tuple[Any, Any], needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of every member of `given`; products for weights without gradients are skipped."""
    u, z = _inner(given)
    both = None if given.taps is None else torch.empty_like(given.x, memory_format=torch.contiguous_format)
    of_h, of_z = (None, None) if both is None else both.chunk(2, -1)
    x = _inputs(given, u, z, mixed, padding)
    found: list[Any] = run.backward(x, saved, *g, False, None, given.dt_bias, of_z)
    gu, raw, gA, gB, gC, gD, gz, gh0, gbias = found
    steps, wide = raw.flatten(0, 1), u.flatten(0, 1)  # (b l, d)
    of_mixed = torch.cat([steps @ given.dt_proj, gB.flatten(0, 1), gC.flatten(0, 1)], -1)  # (b l, r + 2n)
    gx = gu.flatten(0, 1).addmm_(of_mixed, given.x_proj).view_as(u)
    of_x_proj = of_mixed.mT @ wide if needs[4] else None
    of_dt_proj = steps.mT @ _split(given, mixed)[0].flatten(0, 1) if needs[5] else None
    of_taps: list[Tensor | None] = [None, None]
    if given.taps is not None and given.tap_bias is not None:
        h = given.x.chunk(2, -1)[0]
        _, *of_taps = conv_silu_gradients(gx, (h, given.taps, given.tap_bias), (True, *needs[2:4]), of_h)
        gx, gz = both, None
    return gx, gz, *of_taps, of_x_proj, of_dt_proj, gbias, gA, gD, gh0
