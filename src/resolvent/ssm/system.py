"""A linear state-space system as a value: returned by layers, taken by analysis.

Discrete, without delay (the convention of the whole library):

    x_k = A x_{k-1} + B u_k,    y_k = C x_k + D u_k

`delayed()` gives the control form of the same input-output map, y_k = C A x_{k-1} + (C B + D) u_k. Continuous systems
(dt is None) read x' = A x + B u, y = C x + D u.

Shapes: n states, m inputs, p outputs, `...` a bank of independent systems, l steps of a time-varying system.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


def broadcast(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, whose first call imports sympy for a second and more."""
    one = torch.ones(())
    return torch.broadcast_tensors(*(one.expand(shape) for shape in shapes))[0].shape


@dataclass(frozen=True)
class Diagonal:
    """A = diag(lam).

    Examples:
        >>> rv.ssm.Diagonal(torch.tensor([0.5, 0.9])).dense()
        tensor([[0.5000, 0.0000],
                [0.0000, 0.9000]])
    """

    lam: Tensor  # (..., n)

    @property
    def dtype(self) -> torch.dtype:
        return self.lam.dtype

    @property
    def lead(self) -> torch.Size:
        """The dimensions before the states: the bank, and time if time-varying."""
        return self.lam.shape[:-1]

    @property
    def states(self) -> int:
        return self.lam.shape[-1]

    def to(self, dtype: torch.dtype) -> Diagonal:
        return Diagonal(self.lam.to(dtype))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.lam)

    def apply(self, x: Tensor) -> Tensor:
        """A x for x (..., n, k)."""
        return self.lam[..., None] * x


@dataclass(frozen=True)
class DPLR:
    """A = diag(lam) - P Q^*: diagonal plus low rank.

    Examples:
        >>> lam, P, B, V = rv.ssm.dplr("legs", 4)
        >>> rv.ssm.DPLR(lam, P, P).dense().shape
        torch.Size([2, 2])
    """

    lam: Tensor  # (..., n)
    P: Tensor  # (..., n, r)
    Q: Tensor  # (..., n, r)

    @property
    def dtype(self) -> torch.dtype:
        return functools.reduce(torch.promote_types, (self.lam.dtype, self.P.dtype, self.Q.dtype))

    @property
    def lead(self) -> torch.Size:
        return broadcast(self.lam.shape[:-1], self.P.shape[:-2], self.Q.shape[:-2])

    @property
    def states(self) -> int:
        return self.lam.shape[-1]

    def to(self, dtype: torch.dtype) -> DPLR:
        return DPLR(self.lam.to(dtype), self.P.to(dtype), self.Q.to(dtype))

    def dense(self) -> Tensor:
        return torch.diag_embed(self.lam) - self.P @ self.Q.mH

    def apply(self, x: Tensor) -> Tensor:
        """A x for x (..., n, k), in O(n r k)."""
        return self.lam[..., None] * x - self.P @ (self.Q.mH @ x)


@dataclass(frozen=True)
class Dense:
    """A as a full matrix.

    Examples:
        >>> rv.ssm.Dense(torch.eye(2)).dense().shape
        torch.Size([2, 2])
    """

    matrix: Tensor  # (..., n, n)

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def lead(self) -> torch.Size:
        return self.matrix.shape[:-2]

    @property
    def states(self) -> int:
        return self.matrix.shape[-1]

    def to(self, dtype: torch.dtype) -> Dense:
        return Dense(self.matrix.to(dtype))

    def dense(self) -> Tensor:
        return self.matrix

    def apply(self, x: Tensor) -> Tensor:
        return self.matrix @ x


@dataclass(frozen=True)
class System:
    """(A, B, C, D) with its time step.

    dt          None for a continuous system; otherwise the step of its discretisation (1.0 for systems that are
                discrete by nature), a number or a tensor that broadcasts against the bank.
    delay       True for the control form made by `delayed()`.
    time_varying  True when A, B, C, D carry a time axis: A (..., l, n), B (..., l, n, m), C (..., l, p, n), D likewise.

    The four broadcast against one another over the bank and are promoted to a common dtype, complex if any of them is.
    NumPy arrays and nested lists are accepted, integers become real numbers; D may be the number 0. For systems of
    python-control and scipy.signal see `resolvent.ssm.as_system`.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> average = rv.System(0.9 * one, 0.1 * one, one, 0 * one, dt=1.0)
        >>> y, x = average.simulate(torch.ones(3, 1))
        >>> y[:, 0]
        tensor([0.1000, 0.1900, 0.2710])
    """

    A: Dense | Diagonal | DPLR
    B: Tensor  # (..., n, m)
    C: Tensor  # (..., p, n)
    D: Tensor  # (..., p, m)
    dt: float | Tensor | None = None
    delay: bool = False
    time_varying: bool = False

    def __post_init__(self) -> None:
        for name in ("A", "B", "C", "D"):
            object.__setattr__(self, name, as_matrix(name, getattr(self, name)))
        if self.D.dim() == 0 and min(self.B.dim(), self.C.dim()) == 2:
            object.__setattr__(self, "D", _feedthrough(self.D, self.C.shape[-2], self.B.shape[-1]))
        if isinstance(self.A, Tensor):
            object.__setattr__(self, "A", Dense(self.A))
        _check_shapes(self)
        if self.time_varying and self.dt is None:
            raise ValueError("System: a time-varying system is discrete; give it a dt (1.0 if it has none of its own).")
        parts = {"A": self.A, "B": self.B, "C": self.C, "D": self.D}
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts.values()))
        for name, part in parts.items():
            if part.dtype != dtype:
                object.__setattr__(self, name, part.to(dtype))

    @property
    def states(self) -> int:
        return self.B.shape[-2]

    @property
    def inputs(self) -> int:
        return self.B.shape[-1]

    @property
    def outputs(self) -> int:
        return self.C.shape[-2]

    @property
    def bank(self) -> torch.Size:
        """Leading dimensions: the bank of independent systems (without the time axis)."""
        time = 1 if self.time_varying else 0
        leads = (t.shape[: t.dim() - 2 - time] for t in (self.B, self.C, self.D))
        return broadcast(self.A.lead[: len(self.A.lead) - time], *leads)

    @property
    def dtype(self) -> torch.dtype:
        return self.B.dtype

    def dense(self) -> System:
        """The same system with A as a full matrix."""
        return replace(self, A=Dense(self.A.dense()))

    def wide(self) -> System:
        """The same values in double precision."""
        dtype = torch.complex128 if self.dtype.is_complex else torch.float64
        B, C, D = (t.to(dtype) for t in (self.B, self.C, self.D))
        return replace(self, A=self.A.to(dtype), B=B, C=C, D=D)

    def real(self) -> System:
        """A real dense realisation of twice the order whose output is Re(y) for real inputs.

        x = x_r + i x_i turns A into [[Re A, -Im A], [Im A, Re A]], B into [Re B; Im B] and C into [Re C, -Im C].
        """
        if not self.dtype.is_complex:
            return self.dense()
        A, B, C, D = self.A.dense(), self.B, self.C, self.D.real
        A_real = torch.cat([torch.cat([A.real, -A.imag], -1), torch.cat([A.imag, A.real], -1)], -2)
        return replace(
            self, A=Dense(A_real), B=torch.cat([B.real, B.imag], -2), C=torch.cat([C.real, -C.imag], -1), D=D
        )

    def block_diagonal(self) -> System:
        """Merge the last bank axis into one system: d systems (m -> p) become one (d m -> d p).

        If dt differs between the merged systems there is no common one: dt is then 1.0, time counted in steps.
        """
        if not self.bank:
            return self
        axis = -4 if self.time_varying else -3  # position of the merged bank axis in B, C, D
        bank = self.bank

        def merged(t: Tensor) -> Tensor:  # (..., d, [l,] r, c) -> (..., [l,] d r, d c)
            t = t.expand(*bank, *t.shape[axis + 1 :])
            t = t.movedim(axis, -3)  # (..., [l,] d, r, c)
            d, r, c = t.shape[-3:]
            eye = torch.eye(d, dtype=t.dtype, device=t.device)
            return torch.einsum("...irc,ij->...irjc", t, eye).reshape(*t.shape[:-3], d * r, d * c)

        A: Dense | Diagonal
        if isinstance(self.A, Diagonal):
            lam = self.A.lam.expand(*bank, *self.A.lam.shape[axis + 2 :])
            lam = lam.movedim(axis + 1, -2)  # (..., [l,] d, n)
            A = Diagonal(lam.reshape(*lam.shape[:-2], -1))
        else:
            A = Dense(merged(self.A.dense()))
        dt = self.dt
        if isinstance(dt, Tensor) and dt.dim():
            dt = dt[..., 0] if dt.shape[-1] == 1 else 1.0
        return replace(self, A=A, B=merged(self.B), C=merged(self.C), D=merged(self.D), dt=dt)

    def delayed(self) -> System:
        """The control form: the same map in terms of the previous state, C' = C A and D' = C B + D."""
        if self.dt is None:
            raise ValueError("System.delayed: only a discrete system has a delay; call discretise(system, dt) first.")
        if self.delay:
            return self
        return replace(self, C=self.C @ self.A.dense(), D=self.C @ self.B + self.D, delay=True)

    def simulate(self, u: Tensor, x0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Step through a discrete system: u (..., l, m) -> y (..., l, p) and the final state (..., n).

        The reference with which every fast path is compared. `...` must broadcast against the bank. NumPy arrays are
        accepted.
        """
        check_discrete("System.simulate", self, "")
        u, x0 = torch.as_tensor(u), None if x0 is None else torch.as_tensor(x0)
        _check_input(self, u)
        dtype = torch.promote_types(self.dtype, u.dtype)
        A, B, C, D = (t.to(dtype) for t in (self.A.dense(), self.B, self.C, self.D))
        start = torch.zeros(self.states, dtype=dtype, device=u.device) if x0 is None else x0.to(dtype)
        lead = broadcast(u.shape[:-2], self.bank, start.shape[:-1])
        x = start.expand(*lead, self.states)
        ys = []
        for k in range(u.shape[-2]):
            A_k, B_k, C_k, D_k = (t.select(-3, k) if self.time_varying else t for t in (A, B, C, D))
            u_k = u[..., k, :, None].to(dtype)  # (..., m, 1)
            x_next = A_k @ x[..., None] + B_k @ u_k
            seen = x[..., None] if self.delay else x_next
            ys.append((C_k @ seen + D_k @ u_k)[..., 0])
            x = x_next[..., 0]
        y = torch.stack(ys, -2) if ys else u.new_zeros(*lead, 0, self.outputs, dtype=dtype)
        return y, x


def check_discrete(where: str, system: Any, source: str) -> None:
    """Require a discrete-time System; `source` says how to get one."""
    if not isinstance(system, System):
        raise TypeError(f"{where}: expected a System, got {type(system).__name__}; {source}.")
    if system.dt is None:
        raise ValueError(f"{where}: the system is continuous; call discretise(system, dt) first.")


def conjugate_closed(lam: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: float | Tensor | None = None) -> System:
    """The full system of which one conjugate half (lam, B, C) is given: y = C x + conj(C x) + D u = 2 Re(C x) + D u.

    lam (..., n), B (..., n, m), C (..., p, n). A layer with y = Re(C x) passes C / 2.

    Examples:
        >>> lam = torch.tensor([0.5 + 0.5j])
        >>> system = rv.ssm.conjugate_closed(lam, torch.ones(1, 1) + 0j, torch.ones(1, 1) + 0j, torch.zeros(1, 1))
        >>> system.A.dense().shape
        torch.Size([2, 2])
    """
    return System(
        Diagonal(torch.cat([lam, lam.conj()], -1)),
        torch.cat([B, B.conj()], -2),
        torch.cat([C, C.conj()], -1),
        D.to(lam.dtype),
        dt,
    )


def as_matrix(name: str, value: Any) -> Any:
    """One of A, B, C, D as a real or complex tensor; a structured A is returned unchanged."""
    if isinstance(value, Dense | Diagonal | DPLR):
        return value
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError):
            raise TypeError(
                f"System: {name} must be a tensor, an array or nested lists of numbers, got {type(value).__name__}."
            ) from None
        return value if value.is_floating_point() or value.is_complex() else value.double()
    return value if value.is_floating_point() or value.is_complex() else value.to(torch.get_default_dtype())


def _feedthrough(D: Tensor, outputs: int, inputs: int) -> Tensor:
    """A scalar as the matrix D (p, m): 0 fits any shape, another number only one input and one output."""
    if outputs * inputs > 1 and bool(D != 0):
        return D  # rejected later by its shape
    return D.expand(outputs, inputs)


def _check_shapes(system: System) -> None:
    B, C, D = system.B, system.C, system.D
    rank = 3 if system.time_varying else 2
    short = min(B.dim(), C.dim(), D.dim()) < rank
    if short or C.shape[-1] != B.shape[-2] or D.shape[-2:] != (C.shape[-2], B.shape[-1]):
        time = "l, " if system.time_varying else ""
        raise ValueError(
            f"System: expected B ({time}n, m), C ({time}p, n), D ({time}p, m) that agree; got B {tuple(B.shape)}, "
            f"C {tuple(C.shape)}, D {tuple(D.shape)}. Give vectors a second axis, e.g. B[:, None]."
        )
    if system.A.states != B.shape[-2]:
        raise ValueError(f"System: A has {system.A.states} states but B has {B.shape[-2]}; they must be equal.")


def _check_input(system: System, u: Tensor) -> None:
    if u.dim() < 2 or u.shape[-1] != system.inputs:
        raise ValueError(
            f"System.simulate: expected u (..., length, {system.inputs}), got {tuple(u.shape)}; "
            "put time second to last and the inputs last."
        )
    if system.time_varying and u.shape[-2] > system.B.shape[-3]:
        raise ValueError(
            f"System.simulate: the system varies over {system.B.shape[-3]} steps but u has {u.shape[-2]}; shorten u."
        )
