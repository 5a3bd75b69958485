"""The state response H(w) = (i w - A)^-1 B on frequency grids that resolve every peak, and distances between two.

    D = sup_w ||H_1(w) - H_2(w)||_2

bounds |C H_1 - C H_2| for every read-out C of unit norm at every frequency. A system with an eigenvalue close to the
imaginary axis has a peak as narrow as its distance from it, so grids follow the eigenvalues, with nodes at
Im(lam) + c |Re(lam)| for several c, besides evenly spread ones; the grid is then refined around the largest values.

Shape letters: n states, m inputs, k frequencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

NEAR = (0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)  # nodes around a peak, in units of its width
PEAKS = 24  # number of local maxima that are refined
ZOOM = 33  # nodes of a refinement
LEAST = 1e-300


@dataclass(frozen=True)
class SchurResponse:
    """H of a dense (A, B) through A = Q T Q^*: O(n^2) a frequency, and stable however non-normal A is."""

    T: Tensor  # (n, n), upper triangular
    Q: Tensor  # (n, n)
    b: Tensor  # (n, m): Q^* B

    @property
    def poles(self) -> Tensor:
        return self.T.diagonal()

    def at(self, w: Tensor) -> Tensor:
        """H at the frequencies w (k,): (n, k, m), by substitution from the last state upwards, all w at once."""
        n, m = self.b.shape
        s = 1j * w  # (k,)
        x = torch.zeros(n, len(w) * m, dtype=torch.complex128, device=w.device)
        for i in reversed(range(n)):
            right = self.b[i] + (self.T[i, i + 1 :] @ x[i + 1 :]).view(-1, m)  # (k, m)
            x[i] = (right / (s - self.T[i, i])[:, None]).flatten()
        return (self.Q @ x).view(n, -1, m)


@dataclass(frozen=True)
class EigenResponse:
    """H of A = V diag(lam) V^-1, given b = V^-1 B; differentiable in all three."""

    V: Tensor  # (n, j)
    lam: Tensor  # (j,)
    b: Tensor  # (j, m)

    @property
    def poles(self) -> Tensor:
        return self.lam

    def at(self, w: Tensor) -> Tensor:
        """H at the frequencies w (k,): (n, k, m)."""
        peaks = self.b[:, None] / (1j * w - self.lam[:, None])[..., None]  # (j, k, m)
        return (self.V @ peaks.flatten(1)).view(-1, *peaks.shape[1:])


Response = SchurResponse | EigenResponse


@dataclass(frozen=True)
class Peak:
    """The largest value found and the frequency where it is."""

    value: float
    frequency: float


def dense_response(A: Tensor, B: Tensor) -> SchurResponse:
    """The response of a dense system: A (n, n), B (n,) or (n, m)."""
    import scipy.linalg

    T, Q = (torch.from_numpy(t) for t in scipy.linalg.schur(A.to(torch.complex128).cpu().numpy(), "complex"))
    b = B.reshape(len(B), -1).to(torch.complex128)
    return SchurResponse(T, Q, Q.mH @ b)


def refined_grid(poles: Tensor, points: int = 64, *, both_signs: bool = False) -> Tensor:
    """Ascending frequencies (k,): zero, `points` log-spaced over the poles' range and beyond, and around each pole.

    A real system has H(-w) = conj(H(w)), so negative frequencies are omitted unless `both_signs`.
    """
    near = torch.tensor(NEAR, dtype=poles.real.dtype, device=poles.device)
    size = poles.abs()
    top = 10 * float(size.max().clamp_min(LEAST))
    low = max(float(size[size > 1e-12 * top].min() if top > LEAST * 10 else top) / 100, 1e-9 * top)
    even = torch.logspace(0, 1, points, base=top / low, dtype=size.dtype, device=size.device) * low
    around = (poles.imag[:, None] + near * poles.real.abs()[:, None]).flatten()
    around, even = (around, torch.cat([even, -even])) if both_signs else (around.abs(), even)
    return torch.cat([even.new_zeros(1), even, around]).unique(sorted=True)


def response_distance(one: Response, other: Response, points: int = 1000, *, both_signs: bool = False) -> Peak:
    """D and where it is reached, on a grid refined around the poles of both and then around its own largest values."""
    w = refined_grid(torch.cat([one.poles, other.poles]), points, both_signs=both_signs)
    return _largest(lambda w: _norms(one.at(w) - other.at(w)), w)


def response_peak(one: Response, points: int = 1000, *, both_signs: bool = False) -> Peak:
    """sup_w ||H(w)||_2 and where it is reached."""
    return _largest(lambda w: _norms(one.at(w)), refined_grid(one.poles, points, both_signs=both_signs))


def _largest(value: Callable[[Tensor], Tensor], w: Tensor, rounds: int = 3) -> Peak:
    best = Peak(0.0, 0.0)
    for _ in range(rounds):
        d = torch.cat([value(part) for part in w.split(1024)]).nan_to_num(nan=float("inf"))  # 0/0 at a pole on the axis
        i = int(d.argmax())
        if float(d[i]) > best.value:
            best = Peak(float(d[i]), float(w[i]))
        w = _enlarge(w, d)
    return best


def _enlarge(w: Tensor, d: Tensor) -> Tensor:
    """Nodes between the neighbours of the largest local maxima."""
    inner = torch.nn.functional.pad(d, (1, 1), value=-1.0)
    crest = ((d >= inner[:-2]) & (d >= inner[2:])).nonzero()[:, 0]
    crest = crest[d[crest].argsort(descending=True)[:PEAKS]]
    low, high = w[(crest - 1).clamp_min(0)], w[(crest + 1).clamp_max(len(w) - 1)]
    part = torch.linspace(0, 1, ZOOM, dtype=w.dtype, device=w.device)
    return (low[:, None] + (high - low)[:, None] * part).flatten().unique(sorted=True)


def _norms(H: Tensor) -> Tensor:
    """The spectral norm of each frequency's (n, m): (n, k, m) -> (k,)."""
    if H.shape[-1] == 1:
        return torch.linalg.vector_norm(H[..., 0], dim=0)
    return torch.linalg.matrix_norm(H.movedim(1, 0), 2)
