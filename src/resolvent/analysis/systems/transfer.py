"""||G|| at points of the stability boundary, with its rounding error: the samples for peak searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from resolvent.analysis.matrices.boundary import Axis, Circle
from resolvent.analysis.matrices.exact import Array
from resolvent.analysis.matrices.peak import Samples
from resolvent.analysis.matrices.schur import Schur, solve, solve_adjoint
from resolvent.analysis.systems.realisation import Realisation

EPS = float(np.finfo(float).eps)
CHUNK = 500_000  # numbers processed at once
NEAR = 0.9  # nodes whose Frobenius norm is below this part of the best need no singular values


@dataclass(frozen=True)
class Transfer:
    """G on the edge: `gain(w, d)` gives the matrices (k, p, m) and a bound on their rounding (k,).

    `backward(w)` is the effect on G of an error of rounding size in A: not included in `gain` for a dense A.
    """

    edge: Axis | Circle
    D: Array
    gain: Callable[[Array, Array], tuple[Array, Array]]
    backward: Callable[[float], float]

    def sample(self, w: Array, floor: float) -> Samples:
        """Singular values where they can matter, the cheaper Frobenius norm (never smaller) elsewhere."""
        size = max(1, CHUNK // max(1, self.edge.poles.size, self.D.size))
        parts = []
        for i in range(0, len(w), size):
            parts.append(self._part(w[i : i + size], floor))
            floor = max(floor, float(parts[-1].low.max(initial=0.0)))
        columns = zip(*((s.low, s.high, s.noise, s.phase) for s in parts), strict=True)
        return Samples(*(np.concatenate(column) for column in columns))

    def _part(self, w: Array, floor: float) -> Samples:
        d = self.edge.distance(w)
        G, noise = self.gain(w, d)
        phase = self.edge.phase(w, d)
        size = np.sqrt((np.abs(G) ** 2).sum((-2, -1)))  # Frobenius: (k,)
        if 1 in G.shape[-2:]:
            return Samples(np.maximum(size - noise, 0), size + noise, noise, phase)
        top = int(np.argmax(size))
        floor = max(floor, float(np.linalg.norm(G[top], 2)) - float(noise[top]))
        exact = size + noise > NEAR * floor
        norm = size.copy()
        norm[exact] = np.linalg.svd(G[exact], compute_uv=False)[:, 0]
        low = np.where(exact, np.maximum(norm - noise, 0), 0.0)
        return Samples(low, norm + noise, noise, phase)


def of_diagonal(one: Realisation) -> Transfer:
    """G = sum_i c_i b_i / d_i + D; each term is accurate to a few units in the last place, so the error is known."""
    assert one.lam is not None
    edge = Circle(one.lam, one.symmetric) if one.discrete else Axis(one.lam, one.symmetric)
    p, m = one.D.shape
    weights = (one.C.T[:, :, None] * one.B[:, None, :]).reshape(one.states, p * m)
    sizes = np.linalg.norm(one.C, axis=0) * np.linalg.norm(one.B, axis=1)
    direct = float(np.linalg.norm(one.D))
    terms = (8 + math.ceil(math.log2(one.states + 1))) * EPS  # a few for 1/d and the product, plus a pairwise sum

    def gain(w: Array, d: Array) -> tuple[Array, Array]:
        inverse = 1 / d
        if not np.isfinite(w).all():
            inverse[~np.isfinite(w)] = 0
        G = (inverse @ weights).reshape(-1, p, m)
        if one.discrete and one.delay:
            G = G * edge.point(-w)[:, None, None]
        return G + one.D, terms * (np.abs(inverse) @ sizes + direct)

    return Transfer(edge, one.D, gain, lambda w: 0.0)


def of_dense(one: Realisation) -> Transfer:
    """G by triangular solves on the Schur form: the exact G of a matrix within rounding of A."""
    form = Schur.of(one.dense())
    edge = Circle(form.poles, one.symmetric) if one.discrete else Axis(form.poles, one.symmetric)
    B, C = form.U.conj().T @ one.B, one.C @ form.U
    direct = float(np.linalg.norm(one.D))
    by_columns = B.shape[1] <= C.shape[0]

    def gain(w: Array, d: Array) -> tuple[Array, Array]:
        far = ~np.isfinite(w)
        z = edge.point(np.where(far, 0.0, w))
        if by_columns:
            X = np.stack([solve(form.T, z, b[:, None]).T for b in B.T], -1)  # (k, n, m)
            G, inner = C @ X, np.linalg.norm(X, axis=(-2, -1)) * float(np.linalg.norm(C))
        else:
            Y = np.stack([solve_adjoint(form.T, z, c.conj()[:, None]).conj().T for c in C], -2)  # (k, p, n)
            G, inner = Y @ B, np.linalg.norm(Y, axis=(-2, -1)) * float(np.linalg.norm(B))
        G[far] = 0
        if one.discrete and not one.delay:
            G = G * z[:, None, None]
        noise = EPS * (math.sqrt(one.states) * np.where(far, 0.0, inner) + direct)
        return G + one.D, noise

    def backward(w: float) -> float:
        if not math.isfinite(w):
            return 0.0
        z = edge.point(np.asarray([w]))
        right = math.sqrt(sum(float(np.linalg.norm(solve(form.T, z, b[:, None]))) ** 2 for b in B.T))
        left = math.sqrt(sum(float(np.linalg.norm(solve_adjoint(form.T, z, c.conj()[:, None]))) ** 2 for c in C))
        return EPS * math.sqrt(one.states) * left * right * (float(np.linalg.norm(form.T, 2)) + abs(complex(z[0])))

    return Transfer(edge, one.D, gain, backward)


def transfer(one: Realisation) -> Transfer:
    return of_dense(one) if one.lam is None else of_diagonal(one)
