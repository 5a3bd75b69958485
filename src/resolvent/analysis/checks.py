"""Input checks for the analysis of systems and matrices: what was expected, what came, what to do."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.ssm import DPLR, Dense, Diagonal, System

Matrix = Tensor | Dense | Diagonal | DPLR | System


def check_system(where: str, system: Any) -> None:
    """Require a time-invariant System without NaN or infinity."""
    if not isinstance(system, System):
        raise TypeError(
            f"{where}: expected a System, got {type(system).__name__}; a layer gives one with layer.system(), "
            "matrices with resolvent.System(A, B, C, D, dt), a system of python-control or scipy.signal with "
            "resolvent.ssm.as_system(system)."
        )
    if system.time_varying:
        raise ValueError(
            f"{where}: the system varies in time, so it has no transfer function; freeze one step of it: "
            "System(A_k, B_k, C_k, D_k, dt=1.0)."
        )
    if 0 in system.bank:
        raise ValueError(f"{where}: the bank {tuple(system.bank)} holds no system; expected at least one.")
    for part in matrix_parts(system):
        _check_finite(where, "A", part)
    for name, part in (("B", system.B), ("C", system.C), ("D", system.D)):
        _check_finite(where, name, part)


def matrix_parts(system: System) -> tuple[Tensor, ...]:
    """The tensors in which A is stored; the full matrix of a large diagonal bank may not fit."""
    A = system.A
    if isinstance(A, Diagonal):
        return (A.lam,)
    return (A.lam, A.P, A.Q) if isinstance(A, DPLR) else (A.dense(),)


def check_real_number(where: str, name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """A number above `least` (and not above `most`) as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
    if not least < value <= most:
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{where}: {name} must be above {least:g}{upper}, got {value}.")
    return float(value)


def check_axis(where: str, name: str, values: Any) -> Tensor:
    """Real and finite numbers, a tensor (..., k) with k >= 1 or anything convertible to one; a number becomes (1,)."""
    if isinstance(values, Tensor):
        axis = values
    else:
        try:
            axis = torch.as_tensor(values, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{where}: {name} must be real numbers, got {type(values).__name__}.") from error
    if axis.is_complex() or axis.dtype == torch.bool:
        raise TypeError(f"{where}: {name} must be real numbers, got {axis.dtype}.")
    axis = axis.reshape(1) if axis.dim() == 0 else axis
    if axis.numel() == 0:
        raise ValueError(f"{where}: {name} is empty; give at least one value.")
    if not bool(torch.isfinite(axis).all()):
        raise ValueError(f"{where}: {name} holds NaN or infinity; every value must be finite.")
    return axis if axis.is_floating_point() else axis.double()


def check_matrix(where: str, A: Any) -> Tensor:
    """One square matrix (n, n), n >= 1, in double precision on the CPU: from a tensor, a form of A or a System."""
    if isinstance(A, System):
        A = A.A
    if isinstance(A, (Dense, Diagonal, DPLR)):
        A = A.dense()
    if not isinstance(A, Tensor):
        raise TypeError(
            f"{where}: expected a square matrix as a tensor, a System or one of its forms, got {type(A).__name__}; "
            "use torch.as_tensor(A)."
        )
    if A.dim() != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        hint = "index the bank, e.g. A[0]" if A.dim() > 2 else "give a square matrix"
        raise ValueError(f"{where}: expected one matrix (n, n) with n >= 1, got {tuple(A.shape)}; {hint}.")
    if not (A.is_floating_point() or A.is_complex()):
        A = A.double()
    A = A.detach().to("cpu", torch.complex128 if A.is_complex() else torch.float64).resolve_conj()
    _check_finite(where, "A", A)
    return A


def _check_finite(where: str, name: str, values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{where}: {name} holds NaN or infinity; a diverged training run? Check the parameters.")
