"""The floating-point arithmetic of a model, and the rounding error of a linear system in it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.analysis.certificates.error_bounds import impulse
from resolvent.ssm.rounding import Rounding, count
from resolvent.ssm.system import Diagonal, System

TABLES = 2.0  # error in eps of an eigenvalue in a layer's tables
PRODUCTS = {"tf32": 2.0**-10, "bf16": 2.0**-7}  # eps of float32 products where torch may use the lower precision
BLOCK = 256  # most steps summed sequentially


def eps_of(x: Tensor, module: nn.Module | None = None) -> float:
    """The machine epsilon of the coarsest arithmetic in a pass of x through `module`."""
    own = () if module is None else module.parameters()
    types = {x.dtype, *(p.dtype for p in own if p.is_floating_point())}
    if torch.is_autocast_enabled(x.device.type):
        types.add(torch.get_autocast_dtype(x.device.type))
    coarse = max(torch.finfo(kind).eps for kind in types)
    backend: Any = torch.backends.cuda if x.is_cuda else torch.backends.mkldnn
    return max(coarse, PRODUCTS.get(backend.matmul.fp32_precision, 0.0)) if x.dtype == torch.float32 else coarse


def system_rounding(system: System, steps: int) -> Rounding:
    """The L2 error over time and channels: tables, states, and sums over time (by blocks or FFTs)."""
    h, states, tables = absolute_responses(system, steps)
    sums = count(min(steps, BLOCK)) + 6 * math.log2(4 * steps)
    terms = count(system.states + system.inputs)
    each = sums * h + terms * states + TABLES * tables
    return Rounding(float(each.max()) if system.bank else float(each.norm()))


def absolute_responses(system: System, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three sums over time of moduli, (p, m) or (d,) for a bank: of the impulse response; of each state's share in it;
    and of the latter weighted by the number of steps over which an error of the tables has grown."""
    with torch.no_grad():
        system = system.wide()
        h = impulse(system, steps).abs().sum(-1)
        once, twice = _diagonal(system, steps) if isinstance(system.A, Diagonal) else _dense(system, steps)
        once = once + system.D.abs()
    return (h[..., 0, 0], once[..., 0, 0], twice[..., 0, 0]) if system.bank else (h, once, twice)


def _diagonal(system: System, steps: int) -> tuple[Tensor, Tensor]:
    """sum_n |c_n| |b_n| s_n and the same with s_n^2, s_n = sum_k |lam_n|^k."""
    assert isinstance(system.A, Diagonal)
    s = _geometric(system.A.lam.abs(), steps)
    C, B = system.C.abs() * s[..., None, :], system.B.abs()
    return C @ B, C @ (B * s[..., :, None])


def _geometric(r: Tensor, steps: int) -> Tensor:
    """1 + r + ... + r^(steps - 1)."""
    near = (1 - r).abs() < 1e-12
    return torch.where(near, float(steps), (1 - r**steps) / torch.where(near, 1.0, 1 - r))


def _dense(system: System, steps: int) -> tuple[Tensor, Tensor]:
    """The same by norms of A^k B and C A^k, column by column and row by row."""
    A = system.A.dense()
    into, out = system.B, system.C
    s_in, s_out = into.new_zeros(into.shape[:-2] + into.shape[-1:]), out.new_zeros(out.shape[:-1])
    s_in, s_out = s_in.abs(), s_out.abs()
    for _ in range(steps):
        s_in, s_out = s_in + into.norm(dim=-2), s_out + out.norm(dim=-1)
        into, out = A @ into, out @ A
    first_in, first_out = system.B.norm(dim=-2), system.C.norm(dim=-1)
    once = torch.minimum(s_out[..., :, None] * first_in[..., None, :], first_out[..., :, None] * s_in[..., None, :])
    return once, s_out[..., :, None] * s_in[..., None, :]
