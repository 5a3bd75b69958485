"""Systems that the tests of the analysis share."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from resolvent.ssm import DPLR, Dense, Diagonal, System, conjugate_closed, dplr, hippo

F64, C128 = torch.float64, torch.complex128


def closed(pairs: int, p: int = 1, m: int = 1, *, discrete: bool, gap: float = 1e-2, seed: int = 0) -> System:
    """A real map made of conjugate pairs whose distances from the edge are spread between gap and 1."""
    g = torch.Generator().manual_seed(seed)
    depth, place = gap ** torch.rand(pairs, generator=g, dtype=F64), torch.rand(pairs, generator=g, dtype=F64)
    lam = torch.polar(1 - depth, math.pi * place) if discrete else torch.complex(-depth, 20 * place)
    B, C = (torch.randn(s, generator=g, dtype=C128) for s in ((pairs, m), (p, pairs)))
    D = torch.randn(p, m, generator=g, dtype=F64)
    return conjugate_closed(lam, B, C, D if discrete else torch.zeros_like(D), 1.0 if discrete else None)


def dense(n: int, p: int = 1, m: int = 1, *, discrete: bool, seed: int = 0) -> System:
    """A stable real system that is far from normal."""
    g = torch.Generator().manual_seed(seed)
    A, B, C, D = (torch.randn(s, generator=g, dtype=F64) for s in ((n, n), (n, m), (p, n), (p, m)))
    A = A + 2 * torch.triu(torch.ones_like(A), 1)
    lam = torch.linalg.eigvals(A)
    A = A * (0.9 / lam.abs().max()) if discrete else A - (lam.real.max() + 0.3) * torch.eye(n, dtype=F64)
    return System(Dense(A), B, C, D if discrete else torch.zeros_like(D), 1.0 if discrete else None)


def one_pole(lam: complex, b: complex = 1.0, c: complex = 1.0, d: complex = 0.0, dt: float | None = 1.0) -> System:
    values = (torch.tensor([v], dtype=C128 if isinstance(v, complex) else F64) for v in (lam, b, c, d))
    a, *rest = values
    B, C, D = (t[:, None] for t in rest)
    return System(Diagonal(a), B, C, D, dt)


def legs(n: int, C: Tensor) -> System:
    """G_DPLR of the whole LegS matrix, read by C (p, n)."""
    A, B = hippo("legs", n)
    return System(A, B[:, None], C, torch.zeros(len(C), 1, dtype=F64))


def legs_dplr(n: int, C: Tensor) -> System:
    lam, P, B, V = dplr("legs", n, halves=False)
    return System(DPLR(lam, P, P), B[:, None], C.to(C128) @ V, torch.zeros(len(C), 1, dtype=F64))


def legs_diagonal(n: int, C: Tensor, scale: float = 0.5) -> System:
    """S4D-LegS: the normal part alone, with `scale` times B."""
    lam, _, B, V = dplr("legs", n, halves=False)
    return System(Diagonal(lam), scale * B[:, None], C.to(C128) @ V, torch.zeros(len(C), 1, dtype=F64))


def unit(n: int, row: int) -> Tensor:
    return torch.eye(n, dtype=F64)[row : row + 1]


def response(system: System, w: float) -> np.ndarray:
    """G at one frequency from the definition, one dense solve: the oracle that shares no code."""
    A, B, C, D = (t.numpy().astype(complex) for t in (system.A.dense().resolve_conj(), system.B, system.C, system.D))
    z = 1j * w if system.dt is None else np.exp(1j * w)
    X = np.linalg.solve(z * np.eye(len(A)) - A, B)
    return C @ X * (z if system.dt is not None and not system.delay else 1) + D
