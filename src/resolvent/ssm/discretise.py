"""From continuous to discrete time: x' = A x + B u becomes x_k = A_bar x_{k-1} + B_bar u_k.

zoh       A_bar = exp(dt A),  B_bar = A^-1 (A_bar - I) B: the input is held over the step
bilinear  A_bar = (I - dt/2 A)^-1 (I + dt/2 A),  B_bar = (I - dt/2 A)^-1 dt B
euler     A_bar = exp(dt A),  B_bar = dt B: Mamba's rule

C and D are unchanged. All of it is differentiable, and exact even if A is singular or dt is zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.library import fresh, register
from resolvent.ops.pairs import Number, Pair, complex_of, stack_parts
from resolvent.runtime import transforms
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast
from resolvent.ssm.system import DPLR, Dense, Diagonal, System, broadcast
from resolvent.usage.numbers import check_choice

METHODS = ("zoh", "bilinear", "euler")
LOG_DT_LOW = -40.0  # exp(-40) = 4e-18: below it a step has no effect in any of our dtypes
LOG_DT_HIGH = 30.0  # exp(30) = 1e13: dt * lam does not overflow in float32
RADIUS = 0.5  # |z| below which (e^z - 1)/z is summed as a series: its second derivative is then accurate to 1e-14


def discretise(system: System, dt: float | Tensor, method: str = "zoh") -> System:
    """The discrete system for the step dt > 0, a number or a tensor that broadcasts against the bank of systems.

    A diagonal A stays diagonal. A DPLR A stays DPLR under "bilinear" (Woodbury's identity) and becomes dense otherwise.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> slow = rv.ssm.discretise(rv.System(-one, one, one, 0 * one), 0.1)
        >>> round(float(slow.A.dense()), 4), slow.dt
        (0.9048, 0.1)
    """
    _check(system, dt, method)
    step = torch.as_tensor(dt, dtype=system.D.real.dtype, device=system.B.device)
    bank = broadcast(system.bank, step.shape)
    A: Dense | Diagonal | DPLR
    if isinstance(system.A, Diagonal):
        A, B = _diagonal(system.A, system.B, step, method)
    elif isinstance(system.A, DPLR) and method == "bilinear":
        A, B = _dplr_bilinear(system.A, system.B, step)
    elif method == "bilinear":
        A, B = _dense_bilinear(system.A.dense(), system.B, step)
    else:
        A, B = _dense_exponential(system.A.dense(), system.B, step, method)
    C, D = (t.expand(*bank, *t.shape[-2:]) for t in (system.C, system.D))
    return replace(system, A=A, B=B.expand(*bank, *B.shape[-2:]), C=C, D=D, dt=dt)


def positive(log_dt: Tensor) -> Tensor:
    """dt = exp(log dt), finite and positive for any value of the parameter.

    log dt is clamped to [-40, 30]: a parameter of 1e4 would otherwise overflow and turn dt * lam into NaN.
    """
    return log_dt.clamp(LOG_DT_LOW, LOG_DT_HIGH).exp()


def diagonal_step(lam: Number, dt: Tensor, method: str = "zoh") -> tuple[Any, Any]:
    """lam_bar and gain with x_k = lam_bar x_{k-1} + gain B u_k, elementwise; dt broadcasts against lam (..., n).

    The form used by layers: no checks, and dt may differ between the states of one system, as in S5.

    Examples:
        >>> lam_bar, gain = rv.ssm.diagonal_step(torch.tensor(-1.0), torch.tensor(0.1))
        >>> round(float(lam_bar), 4), round(float(gain), 4)
        (0.9048, 0.0952)
    """
    z = lam.mul(dt)
    if method == "zoh":
        return z.exp(), expm1_over(z).mul(dt)
    if method == "bilinear":
        inverse = (-z / 2 + 1).reciprocal()
        return (z / 2 + 1) * inverse, inverse.mul(dt)
    check_choice("discretise", "method", method, METHODS)
    return z.exp(), dt * torch.ones_like(z.real)


def undo_step(lam_bar: Tensor, dt: Tensor, method: str = "zoh") -> tuple[Tensor, Tensor]:
    """lam and gain with diagonal_step(lam, dt) = (lam_bar, gain): the continuous system of a discrete one.

    lam_bar is complex and nonzero; of the many matching lam, the one of lowest frequency is returned.
    """
    z = 2 * (lam_bar - 1) / (lam_bar + 1) if method == "bilinear" else torch.log(lam_bar)
    lam = z / dt
    return lam, diagonal_step(lam, dt + torch.zeros_like(lam.real), method)[1]


def expm1_over(z: Number) -> Any:
    """(e^z - 1) / z, with the value 1 at z = 0; real or complex, accurate and twice differentiable everywhere.

    Near zero the quotient loses its derivatives to cancellation, so a series is used there.

    Examples:
        >>> rv.ssm.expm1_over(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 1.7183])
    """
    if isinstance(z, Pair):
        own = _pair_value if transforms.refuses_operators() else _pair_expm1_over
        return complex_of(own(stack_parts(z)))
    if not (z.requires_grad and torch.is_grad_enabled()) or not is_untransformed():
        return _expm1_over(z)
    found: Tensor = _Expm1Over.apply(z)
    return found


def _expm1_over(z: Tensor) -> Tensor:
    small = z.detach().abs() < RADIUS
    near = torch.where(small, z, torch.zeros_like(z))
    far = torch.where(small, torch.ones_like(z), z)
    return torch.where(small, _series(near), expm1(far) / far)


class _Expm1Over(torch.autograd.Function):
    """f(z) = (e^z - 1) / z with its derivative f' = (1 + (z - 1) f) / z, near zero also a series: with autograd, the
    terms of the series would be a hundred short operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        f = _expm1_over(z)
        ctx.save_for_backward(z, f)
        return f

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> Tensor | None:
        z, f = ctx.saved_tensors
        if by_graph_only(*gradients):
            return gradients_by_graph(lambda t: (_expm1_over(t),), (z,), gradients, (True,))[0]
        return gradients[0] * _slope(z, f).conj()


def _slope(z: Tensor, f: Tensor) -> Tensor:
    small = z.abs() < RADIUS
    far = (1 + (z - 1) * f) / torch.where(small, torch.ones_like(z), z)
    return torch.where(small, _series_slope(torch.where(small, z, 0)), far)


def _pair_value(z: Tensor) -> Tensor:
    """For real pairs (..., 2)."""
    return torch.view_as_real(_expm1_over(torch.view_as_complex(z.contiguous())))


_pair_expm1_over = torch.library.custom_op("resolvent::expm1_over", _pair_value, mutates_args=())


@torch.library.custom_op("resolvent::expm1_over_backward", mutates_args=())
def _pair_backward(g: Tensor, z: Tensor, f: Tensor) -> Tensor:
    g, z, f = (torch.view_as_complex(t.contiguous()) for t in (g, z, f))
    return torch.view_as_real((g * _slope(z, f).conj()).resolve_conj())


_pair_expm1_over.register_fake(fresh)
_pair_backward.register_fake(lambda g, z, f: fresh(z))


def _pair_saved(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _pair_gradient(ctx: Any, g: Tensor) -> Tensor | None:
    z, f = ctx.saved_tensors
    if torch.is_grad_enabled():
        return gradients_by_graph(lambda t: (_pair_value(t),), (z,), (g,), (True,))[0]
    found: Tensor = _pair_backward(g, z, f)
    return found


register(_pair_expm1_over, _pair_backward, _pair_gradient, _pair_saved)


def expm1(z: Tensor) -> Tensor:
    """e^z - 1 without cancellation near z = 2 pi i k; complex too, on every device."""
    if not z.is_complex():
        return torch.expm1(z)
    x, y = z.real, z.imag
    return torch.complex(torch.expm1(x) * torch.cos(y) - 2 * torch.sin(y / 2) ** 2, torch.exp(x) * torch.sin(y))


def _series(z: Tensor) -> Tensor:
    """sum_k z^k / (k+1)!, enough terms for the second derivative at |z| = RADIUS."""
    terms = 18 if z.dtype in (torch.float64, torch.complex128) else 11
    total = torch.full_like(z, 1 / math.factorial(terms))
    for k in range(terms - 1, 0, -1):
        total = total * z + 1 / math.factorial(k)
    return total


def _series_slope(z: Tensor) -> Tensor:
    """Its derivative, sum_k k z^(k-1) / (k+1)!; no graph is recorded."""
    terms = 18 if z.dtype in (torch.float64, torch.complex128) else 11
    total = torch.full_like(z, terms / math.factorial(terms + 1))
    for k in range(terms - 1, 0, -1):
        total.mul_(z).add_(k / math.factorial(k + 1))
    return total


def _diagonal(A: Diagonal, B: Tensor, dt: Tensor, method: str) -> tuple[Diagonal, Tensor]:
    lam_bar, gain = diagonal_step(A.lam, dt[..., None], method)
    return Diagonal(lam_bar), gain[..., None] * B


def _dplr_bilinear(A: DPLR, B: Tensor, dt: Tensor) -> tuple[DPLR, Tensor]:
    """With M = I - dt/2 A, A_bar = 2 M^-1 - I; M^-1 = F - dt/2 F P W Q^* F, F = 1/(1 - dt/2 lam), by Woodbury."""
    dt = dt[..., None, None]
    F = 1 / (1 - dt / 2 * A.lam[..., None])  # (..., n, 1)
    P, Q = F * A.P, F.conj() * A.Q  # (..., n, r)
    eye = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    P = dt * P @ torch.linalg.inv(eye + dt / 2 * A.Q.mH @ P)  # dt F P W
    F = F.expand(*broadcast(F.shape[:-1], P.shape[:-1]), 1)
    return DPLR((2 * F - 1)[..., 0], P, Q), dt * (F * B) - dt / 2 * P @ (Q.mH @ B)


def _dense_bilinear(A: Tensor, B: Tensor, dt: Tensor) -> tuple[Dense, Tensor]:
    dt = dt[..., None, None]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    n, m = B.shape[-2:]
    lead = broadcast(A.shape[:-2], B.shape[:-2], dt.shape[:-2])
    right = torch.cat([(eye + dt / 2 * A).expand(*lead, n, n), (dt * B).expand(*lead, n, m)], -1)
    both, info = torch.linalg.solve_ex((eye - dt / 2 * A).expand(*lead, n, n), right)
    if not _is_traced(info) and bool((info != 0).any()):
        raise ValueError(
            "discretise: the bilinear rule has no value here: A has the unstable eigenvalue 2 / dt; use a smaller dt, "
            'or method="zoh".'
        )
    return Dense(both[..., :n]), both[..., n:]


def _dense_exponential(A: Tensor, B: Tensor, dt: Tensor, method: str) -> tuple[Dense, Tensor]:
    """exp of dt [[A, B], [0, 0]] holds exp(dt A) and its integral applied to B, for singular A too (Van Loan 1978)."""
    dt = dt[..., None, None]
    if method == "euler":
        return Dense(torch.linalg.matrix_exp(dt * A)), dt * B
    n, m = B.shape[-2:]
    lead = broadcast(A.shape[:-2], B.shape[:-2], dt.shape[:-2])
    top = torch.cat([(dt * A).expand(*lead, n, n), (dt * B).expand(*lead, n, m)], -1)
    both = torch.linalg.matrix_exp(torch.nn.functional.pad(top, (0, 0, 0, m)))
    return Dense(both[..., :n, :n]), both[..., :n, n:]


def _check(system: System, dt: float | Tensor, method: str) -> None:
    if not isinstance(system, System):
        raise TypeError(
            f"discretise: expected a System, got {type(system).__name__}; use System(A, B, C, D) or as_system(system)."
        )
    if system.dt is not None:
        raise ValueError(
            f"discretise: expected a continuous system (dt None), got one already discrete with dt = {system.dt}; "
            "discretise the original system with the new step instead."
        )
    check_choice("discretise", "method", method, METHODS)
    try:
        step = torch.as_tensor(dt)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"discretise: dt must be a number or a tensor, got {type(dt).__name__}.") from error
    if not _is_traced(step) and not bool(((step > 0) & (step < math.inf)).all()):
        raise ValueError(
            f"discretise: dt must be positive and finite, got {dt}; parametrise it by its logarithm to keep it so."
        )


def _is_traced(value: Tensor) -> bool:
    """Whether values cannot be read."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(value)
