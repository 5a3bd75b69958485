"""The selective scan, its adjoint and its tangent, composed of differentiable operations and `linear_scan`.

They materialise all states (b, l, d, n). Derivatives of every order, `torch.func` and the chunked backend use them.
Where the state is reset, `reset` (b, l), its multiplier is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.ops.selective_scan.inputs import Inputs, each
from resolvent.runtime.transforms import without_autocast

Gradients = tuple[Tensor | None, ...]  # one per input, in their order


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the products in their given dtype; autocast would make them bfloat16."""

    @wraps(function)
    def run(x: Inputs, *args: Any) -> Any:
        with without_autocast(x.u.device.type):
            return function(x, *args)

    return run


@_without_autocast
def scan(x: Inputs, reverse: bool, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """y (b, l, d) and the last state (b, d, n), for l >= 1."""
    _, h = _states(x, reverse, reset)
    y = _read(x, h)
    return (y if x.z is None else y * F.silu(x.z)), h[:, 0 if reverse else -1]


@_without_autocast
def adjoint(x: Inputs, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None = None) -> Gradients:
    """Gradients of every input from those of y and of the last state.

    The state's gradient runs backwards: lam_t = C_t g_t + a_bar_{t+1} lam_{t+1}.
    """
    a_bar, h = _states(x, reverse, reset)
    g, gz = _gate_adjoint(x, h, gy)
    drive = g[..., None] * x.C[:, :, None, :]  # (b, l, d, n)
    a_next = _shift(a_bar, torch.ones_like(gh), not reverse)  # 1 at the end, where the last state's gradient enters
    lam = _linear(a_next, drive, gh, not reverse)
    q = lam * a_bar * _before(x, h, reverse)  # gradient of dt_t A
    r = _over_states(lam, x.B)  # gradient of dt_t u_t
    gu = r * x.dt if x.D is None else r * x.dt + g * x.D
    gdt = (q * x.A).sum(-1) + r * x.u
    gA = (q * x.dt[..., None]).sum((0, 1))
    gB = _over_channels(lam, x.dt * x.u)
    gC = _over_channels(h, g)
    gD = None if x.D is None else (g * x.u).sum((0, 1))
    first = -1 if reverse else 0
    gh0 = None if x.h0 is None else a_bar[:, first] * lam[:, first]
    return gu, gdt, gA, gB, gC, gD, gz, gh0


@_without_autocast
def tangent(x: Inputs, dx: Inputs, reverse: bool, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Directional derivatives of y and of the last state; members of dx that are None are constant."""
    v = each(torch.zeros_like, x)._replace(**{k: t for k, t in dx._asdict().items() if t is not None})
    a_bar, h = _states(x, reverse, reset)
    rate = v.dt[..., None] * x.A + x.dt[..., None] * v.A  # d(dt_t A), (b, l, d, n)
    drive = _outer(v.dt * x.u + x.dt * v.u, x.B) + _outer(x.dt * x.u, v.B)
    dh = _linear(a_bar, drive + rate * a_bar * _before(x, h, reverse), v.h0, reverse)
    dy = _over_states(dh, x.C) + _over_states(h, v.C)
    if x.D is not None and v.D is not None:
        dy = dy + x.D * v.u + v.D * x.u
    if x.z is not None and v.z is not None:
        dy = dy * F.silu(x.z) + _read(x, h) * _silu_slope(x.z) * v.z
    return dy, dh[:, 0 if reverse else -1]


def _states(x: Inputs, reverse: bool, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    a_bar = torch.exp(x.dt[..., None] * x.A)  # (b, l, d, n)
    if reset is not None:
        a_bar = torch.where(reset[..., None, None], 0, a_bar)
    return a_bar, _linear(a_bar, _outer(x.dt * x.u, x.B), x.h0, reverse)


def _linear(a: Tensor, drive: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    b, l, d, n = a.shape
    start = None if h0 is None else h0.reshape(b, d * n)
    return linear_scan(a.reshape(b, l, d * n), drive.reshape(b, l, d * n), start, reverse).reshape(b, l, d, n)


def _outer(channels: Tensor, states: Tensor) -> Tensor:
    return channels[..., None] * states[:, :, None, :]  # (b, l, d, n)


# Products, not einsum: the vmap of `torch.autograd.functional.jacobian(vectorize=True)` has no rule for the latter.
def _over_states(h: Tensor, c: Tensor) -> Tensor:
    return (h @ c[..., None])[..., 0]  # (b, l, d, n), (b, l, n) -> (b, l, d)


def _over_channels(h: Tensor, g: Tensor) -> Tensor:
    return (g[:, :, None, :] @ h)[:, :, 0]  # (b, l, d, n), (b, l, d) -> (b, l, n)


def _read(x: Inputs, h: Tensor) -> Tensor:
    y = _over_states(h, x.C)
    return y if x.D is None else y + x.D * x.u


def _before(x: Inputs, h: Tensor, reverse: bool) -> Tensor:
    """The state before each step, (b, l, d, n)."""
    h0 = torch.zeros_like(h[:, 0]) if x.h0 is None else x.h0
    return _shift(h, h0, reverse)


def _shift(h: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """Each step's predecessor in the direction of the scan; `first` (b, d, n) precedes the first."""
    if reverse:
        return torch.cat((h[:, 1:], first[:, None]), dim=1)
    return torch.cat((first[:, None], h[:, :-1]), dim=1)


def _gate_adjoint(x: Inputs, h: Tensor, gy: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients of the ungated output and of z."""
    if x.z is None:
        return gy, None
    return gy * F.silu(x.z), gy * _read(x, h) * _silu_slope(x.z)


def _silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))
