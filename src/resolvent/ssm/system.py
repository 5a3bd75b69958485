"""A linear state-space system as a value: what layers hand over and what analysis is given.

Discrete, without delay (the convention of the whole library):

    x_k = A x_{k-1} + B u_k,    y_k = C x_k + D u_k

`delayed()` gives the control form of the same input-output map, y_k = C A x_{k-1} + (C B + D) u_k. Continuous systems
(dt is None) read x' = A x + B u, y = C x + D u.

Shapes: n states, m inputs, p outputs, `...` a bank of independent systems, l steps of a time-varying system.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Diagonal:
    """A = diag(lam)."""

    lam: Tensor  # (..., n)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.lam)

    def apply(self, x: Tensor) -> Tensor:
        """A x for x (..., n, k)."""
        return self.lam[..., None] * x


@dataclass(frozen=True)
class DPLR:
    """A = diag(lam) - P Q^*: diagonal plus low rank."""

    lam: Tensor  # (..., n)
    P: Tensor  # (..., n, r)
    Q: Tensor  # (..., n, r)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.lam) - self.P @ self.Q.mH

    def apply(self, x: Tensor) -> Tensor:
        """A x for x (..., n, k), in O(n r k)."""
        return self.lam[..., None] * x - self.P @ (self.Q.mH @ x)


@dataclass(frozen=True)
class Dense:
    """A as a full matrix."""

    matrix: Tensor  # (..., n, n)

    def dense(self) -> Tensor:
        return self.matrix

    def apply(self, x: Tensor) -> Tensor:
        return self.matrix @ x


@dataclass(frozen=True)
class System:
    """(A, B, C, D) with its time step.

    dt          None for a continuous system; otherwise the step that it was discretised with (1.0 for systems that are
                discrete by nature), a number or a tensor that broadcasts against the bank.
    delay       True for the control form made by `delayed()`.
    time_varying  True when A, B, C, D carry a time axis: A (..., l, n), B (..., l, n, m), C (..., l, p, n), D likewise.
    """

    A: Dense | Diagonal | DPLR
    B: Tensor  # (..., n, m)
    C: Tensor  # (..., p, n)
    D: Tensor  # (..., p, m)
    dt: float | Tensor | None = None
    delay: bool = False
    time_varying: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.A, Tensor):
            object.__setattr__(self, "A", Dense(self.A))
        n, m = self.B.shape[-2:]
        p = self.C.shape[-2]
        if self.C.shape[-1] != n or self.D.shape[-2:] != (p, m):
            raise ValueError(
                f"System: expected B (n, m), C (p, n), D (p, m) that agree; got B {tuple(self.B.shape)}, "
                f"C {tuple(self.C.shape)}, D {tuple(self.D.shape)}. Give vectors a second axis, e.g. B[:, None]."
            )
        states = self.A.matrix.shape[-1] if isinstance(self.A, Dense) else self.A.lam.shape[-1]
        if states != n:
            raise ValueError(f"System: A has {states} states but B has {n}; they must be equal.")
        if self.time_varying and self.dt is None:
            raise ValueError("System: a time-varying system is discrete; give it a dt (1.0 if it has none of its own).")

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
        """Leading dimensions: how many independent systems this value holds (without the time axis)."""
        return self.B.shape[: -3 if self.time_varying else -2]

    def dense(self) -> System:
        """The same system with A as a full matrix."""
        return replace(self, A=Dense(self.A.dense()))

    def real(self) -> System:
        """A real dense realisation of twice the order whose output is Re(y) for real inputs.

        x = x_r + i x_i turns A into [[Re A, -Im A], [Im A, Re A]], B into [Re B; Im B] and C into [Re C, -Im C].
        """
        A = self.A.dense()
        if not (A.is_complex() or self.B.is_complex() or self.C.is_complex()):
            return self.dense()
        A, B, C = (t if t.is_complex() else t + 0j for t in (A, self.B, self.C))
        D = self.D.real if self.D.is_complex() else self.D
        A_real = torch.cat([torch.cat([A.real, -A.imag], -1), torch.cat([A.imag, A.real], -1)], -2)
        return replace(
            self, A=Dense(A_real), B=torch.cat([B.real, B.imag], -2), C=torch.cat([C.real, -C.imag], -1), D=D
        )

    def block_diagonal(self) -> System:
        """Merge the last bank axis into one system: d systems (m -> p) become one (d m -> d p)."""
        if not self.bank:
            return self
        axis = -4 if self.time_varying else -3  # where the merged bank axis stands in B, C, D

        def merged(t: Tensor) -> Tensor:  # (..., d, [l,] r, c) -> (..., [l,] d r, d c)
            t = t.movedim(axis, -3)  # (..., [l,] d, r, c)
            d, r, c = t.shape[-3:]
            eye = torch.eye(d, dtype=t.dtype, device=t.device)
            return torch.einsum("...irc,ij->...irjc", t, eye).reshape(*t.shape[:-3], d * r, d * c)

        A: Dense | Diagonal
        if isinstance(self.A, Diagonal):
            lam = self.A.lam.movedim(axis + 1, -2)  # (..., [l,] d, n)
            A = Diagonal(lam.reshape(*lam.shape[:-2], -1))
        else:
            A = Dense(merged(self.A.dense()))
        return replace(self, A=A, B=merged(self.B), C=merged(self.C), D=merged(self.D))

    def delayed(self) -> System:
        """The control form: the same map written with the old state, C' = C A and D' = C B + D."""
        if self.dt is None:
            raise ValueError("System.delayed: only a discrete system has a delay; call discretise(system, dt) first.")
        if self.delay:
            return self
        return replace(self, C=self.C @ self.A.dense(), D=self.C @ self.B + self.D, delay=True)

    def simulate(self, u: Tensor, x0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Step through a discrete system: u (..., l, m) -> y (..., l, p) and the final state (..., n).

        The slow truth that every fast path is compared with. `...` must broadcast against the bank.
        """
        if self.dt is None:
            raise ValueError("System.simulate: the system is continuous; call discretise(system, dt) first.")
        A = self.A.dense()
        lead = torch.broadcast_shapes(u.shape[:-2], self.bank)
        dtype = torch.promote_types(torch.promote_types(A.dtype, self.B.dtype), u.dtype)
        x = torch.zeros(*lead, self.states, dtype=dtype, device=u.device) if x0 is None else x0.to(dtype)
        ys = []
        for k in range(u.shape[-2]):
            A_k, B_k, C_k, D_k = (t.select(-3, k) if self.time_varying else t for t in (A, self.B, self.C, self.D))
            u_k = u[..., k, :].to(dtype)[..., None]  # (..., m, 1)
            x_next = A_k.to(dtype) @ x[..., None] + B_k.to(dtype) @ u_k
            seen = x[..., None] if self.delay else x_next
            ys.append((C_k.to(dtype) @ seen + D_k.to(dtype) @ u_k)[..., 0])
            x = x_next[..., 0]
        y = torch.stack(ys, -2) if ys else u.new_zeros(*lead, 0, self.outputs, dtype=dtype)
        return y, x


def conjugate_closed(lam: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: float | Tensor | None = None) -> System:
    """The full system whose conjugate half (lam, B, C) is kept: y = C x + conj(C x) + D u = 2 Re(C x) + D u.

    lam (..., n), B (..., n, m), C (..., p, n). A layer that reads Re(C x) passes C / 2.
    """
    return System(
        Diagonal(torch.cat([lam, lam.conj()], -1)),
        torch.cat([B, B.conj()], -2),
        torch.cat([C, C.conj()], -1),
        D.to(lam.dtype),
        dt,
    )
