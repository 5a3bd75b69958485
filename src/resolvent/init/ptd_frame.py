"""The variables of perturb-then-diagonalise: eigenvectors and eigenvalues themselves instead of E.

With V and lam free, E = V diag(lam) V^-1 - A follows in closed form: no eigenvalue problem is solved or
differentiated, and a well conditioned V stays so. For a real A the columns are pairs p + i q and p - i q,
so E is real by construction:

    A + E = X L X^-1,    X = [sqrt(2) p, sqrt(2) q, r],    L = blocks [[a, b], [-b, a]] and real numbers

X and V differ by a unitary factor; they have the same singular values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.ssm.response_grid import EigenResponse

REAL = 1e-9  # an eigenvalue of a real matrix whose imaginary part is below this share of its size is real


@dataclass(frozen=True)
class Factors:
    """A + E = V diag(lam) V^-1 for one point of the search; the basis is X for a real matrix, V for a complex one."""

    basis: Tensor  # (n, n)
    product: Tensor  # (n, n): basis times the (block) diagonal matrix
    V: Tensor  # (n, j)
    lam: Tensor  # (j,): for a real matrix one of each conjugate pair, then the real ones


@dataclass(frozen=True)
class RealFrame:
    """Where a search over real E starts: `pairs` conjugate pairs and the rest real eigenvalues."""

    X: Tensor  # (n, n)
    re: Tensor  # (pairs + reals,)
    im: Tensor  # (pairs,)

    @property
    def pairs(self) -> int:
        return len(self.im)

    def start(self) -> Tensor:
        return torch.cat([self.X.flatten(), torch.zeros(len(self.re) + self.pairs, dtype=self.X.dtype)])

    def factors(self, x: Tensor) -> Factors:
        n, m = self.X.shape[0], self.pairs
        X, shift, turn = x.split([n * n, len(self.re), m])
        p, q, r = X.view(n, n).split([m, m, n - 2 * m], 1)
        norm = (p.square().sum(0) + q.square().sum(0)).sqrt()
        p, q, r = p / norm, q / norm, r / torch.linalg.vector_norm(r, dim=0)
        re, im = self.re + _scale(self.re) * shift, self.im * turn.exp()
        a, real = re[:m], re[m:]
        root = math.sqrt(2)
        product = torch.cat([root * (a * p - im * q), root * (im * p + a * q), real * r], 1)
        V = torch.cat([torch.complex(p, q), r.to(torch.complex128)], 1)
        lam = torch.cat([torch.complex(a, im), real.to(torch.complex128)])
        return Factors(torch.cat([root * p, root * q, r], 1), product, V, lam)

    def response(self, at: Factors, b: Tensor) -> EigenResponse:
        """The whole response; b = X^-1 B, (n, m)."""
        pairs, n = self.pairs, len(b)
        first, second, real = b.split([pairs, pairs, n - 2 * pairs])
        half = torch.complex(first, -second) / math.sqrt(2)
        V, V_real = at.V.split([pairs, n - 2 * pairs], 1)
        lam, lam_real = at.lam.split([pairs, n - 2 * pairs])
        return EigenResponse(
            torch.cat([V, V_real, V.conj()], 1),
            torch.cat([lam, lam_real, lam.conj()]),
            torch.cat([half, real.to(half.dtype), half.conj()]),
        )

    def spectrum(self, at: Factors) -> tuple[Tensor, Tensor]:
        """lam (n,) and V (n, n): pairs with positive imaginary part rising, real ones rising, then the conjugates."""
        m = self.pairs
        order = at.lam[:m].imag.argsort()
        lam, V = at.lam[:m][order], at.V[:, :m][:, order]
        tail = at.lam[m:].real.argsort()
        real, V_real = at.lam[m:][tail], at.V[:, m:][:, tail]
        return torch.cat([lam, real, lam.conj()]).resolve_conj(), torch.cat([V, V_real, V.conj()], 1).resolve_conj()


@dataclass(frozen=True)
class ComplexFrame:
    """Where a search over complex E starts."""

    V: Tensor  # (n, n)
    lam0: Tensor  # (n,)

    def start(self) -> Tensor:
        return torch.cat([torch.view_as_real(self.V).flatten(), torch.zeros(2 * len(self.lam0), dtype=torch.float64)])

    def factors(self, x: Tensor) -> Factors:
        n = len(self.lam0)
        V = torch.view_as_complex(x[: 2 * n * n].view(n, n, 2))
        V = V / torch.linalg.vector_norm(V, dim=0)
        lam = self.lam0 + _scale(self.lam0.abs()) * torch.view_as_complex(x[2 * n * n :].view(n, 2))
        return Factors(V, V * lam, V, lam)

    def response(self, at: Factors, b: Tensor) -> EigenResponse:
        return EigenResponse(at.V, at.lam, b)

    def spectrum(self, at: Factors) -> tuple[Tensor, Tensor]:
        order = at.lam.imag.argsort()
        return at.lam[order], at.V[:, order]


Frame = RealFrame | ComplexFrame


def frame_of(A: Tensor) -> Frame:
    """The eigenvectors and eigenvalues of A as a frame: real pairs for a real matrix."""
    lam, V = torch.linalg.eig(A)
    if A.is_complex():
        return ComplexFrame(V, lam)
    upper = lam.imag > REAL * lam.abs()
    real = lam.imag.abs() <= REAL * lam.abs()
    if 2 * int(upper.sum()) + int(real.sum()) != len(lam):  # a pair whose halves were judged differently
        upper, real = lam.imag > 0, lam.imag == 0
    v = V[:, upper]
    r = V[:, real].real
    X = torch.cat([math.sqrt(2) * v.real, math.sqrt(2) * v.imag, r], 1)
    return RealFrame(X, torch.cat([lam[upper].real, lam[real].real]), lam[upper].imag)


def _scale(size: Tensor) -> Tensor:
    """How far one unit of a variable moves an eigenvalue: its own size, and a little for one that is zero."""
    return torch.maximum(size.abs(), 1e-3 * size.abs().max()).clamp_min(1e-300)
