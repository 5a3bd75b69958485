"""One system of a bank as plain arrays: double precision, states without effect removed, conjugate pairs detected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis.matrices.balance import balance
from resolvent.analysis.matrices.exact import Array
from resolvent.ssm import DPLR, Diagonal, System


@dataclass(frozen=True)
class Realisation:
    """G(s) = C (s - A)^-1 B + D, or G(z) = z^(1 - delay) C (z - A)^-1 B + D for a discrete system.

    `lam` is the diagonal of a diagonal A, and `A` is then None. `symmetric`: |G| is the same at w and -w.
    """

    lam: Array | None  # (n,)
    A: Array | None  # (n, n)
    B: Array  # (n, m)
    C: Array  # (p, n)
    D: Array  # (p, m)
    discrete: bool
    delay: bool
    symmetric: bool

    @property
    def states(self) -> int:
        return int(self.B.shape[0])

    def poles(self) -> Array:
        """The eigenvalues of A."""
        if self.lam is not None:
            return self.lam
        assert self.A is not None
        return np.linalg.eigvals(self.A) if self.states else np.zeros(0, complex)

    def dense(self) -> Array:
        """A as a full matrix."""
        if self.lam is not None:
            return np.diag(self.lam)
        assert self.A is not None
        return self.A


def realisations(system: System) -> Iterator[Realisation]:
    """The systems of the bank, one after the other, in row-major order."""
    bank = system.bank
    diagonal = isinstance(system.A, Diagonal)
    symmetric, system = is_real(system), system if diagonal else balance(system)
    A = system.A.lam if isinstance(system.A, Diagonal) else system.A.dense()
    B, C, D = (flat(t, bank, 2) for t in (system.B, system.C, system.D))
    for a, b, c, d in zip(flat(A, bank, 1 if diagonal else 2), B, C, D, strict=True):
        lam, matrix = (a, None) if diagonal else (None, a)
        yield _visible(Realisation(lam, matrix, b, c, d, system.dt is not None, system.delay, symmetric))


def is_real(system: System) -> bool:
    """Whether the map is real by its form: real matrices, or [half, conj(half)]."""
    if not system.dtype.is_complex:
        return True
    if system.states % 2 or bool((system.D.imag != 0).any()):
        return False
    columns = [(system.B, -2), (system.C, -1)]
    if isinstance(system.A, Diagonal):
        columns += [(system.A.lam, -1)]
    elif isinstance(system.A, DPLR):
        columns += [(system.A.lam, -1), (system.A.P, -2), (system.A.Q, -2)]
    else:
        return False
    return all(_conjugate_halves(t, axis) for t, axis in columns)


def _conjugate_halves(t: Tensor, axis: int) -> bool:
    first, second = t.chunk(2, axis)
    return bool((first == second.conj()).all())


def flat(t: Tensor, bank: torch.Size, keep: int) -> Array:
    """The bank as one leading axis before the last `keep`, in double precision."""
    wide = t.detach().to("cpu", torch.complex128 if t.is_complex() else torch.float64).resolve_conj()
    return wide.expand(*bank, *t.shape[t.dim() - keep :]).reshape(bank.numel(), *t.shape[t.dim() - keep :]).numpy()


def _visible(one: Realisation) -> Realisation:
    """Remove states that no chain of non-zero entries connects to both an input and an output: they are not in G."""
    if one.lam is not None:
        seen = (one.B != 0).any(1) & (one.C != 0).any(0)
    else:
        assert one.A is not None
        links = one.A != 0
        seen = _find_reachable(links, (one.B != 0).any(1)) & _find_reachable(links.T, (one.C != 0).any(0))
    if seen.all():
        return one
    lam = None if one.lam is None else one.lam[seen]
    A = None if one.A is None else one.A[np.ix_(seen, seen)]
    return replace(one, lam=lam, A=A, B=one.B[seen], C=one.C[:, seen])


def _find_reachable(links: Array, start: Array) -> Array:
    """States i reachable by a path of links[i, j] from the states in `start`."""
    while True:
        grown = start | (links[:, start]).any(1)
        if (grown == start).all():
            return start
        start = grown
