"""Initialisations as continuous systems: the exact LegS, its diagonal approximations, and PTD.

"s4d-legs" is the normal part of LegS with half of B, as in theory: it then tends to LegS at a fixed frequency,
and has spikes near N^2 / pi that LegS lacks (2/pi high for the first state, whatever N). LegS, s4d-legs and ptd live in
the same coordinates, those of the Legendre polynomials, so a read-out C means the same for all three.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.init.spectra import SPECTRA, legs_ptd
from resolvent.ssm.hippo import dplr, hippo
from resolvent.ssm.response_grid import EigenResponse, Response, dense_response
from resolvent.usage.numbers import check_choice

NAMES = ("legs", "s4d-legs", "s4d-lin", "s4d-inv", "s4d-real", "ptd")
LEAST = {"legs": 1, "s4d-real": 1}  # states; the others keep conjugate pairs


@dataclass(frozen=True)
class Start:
    """x' = A x + B u. `lam` are the known eigenvalues, not computed ones."""

    name: str
    A: Tensor  # (n, n)
    B: Tensor  # (n,)
    lam: Tensor  # (n,)
    response: Response  # H(w) = (i w - A)^-1 B
    of_legs: bool  # its states are coefficients of Legendre polynomials

    @property
    def n(self) -> int:
        return len(self.lam)

    def state_norm(self, w: Tensor) -> Tensor:
        """||H(w)||_2 (k,): the largest |G| over read-outs of unit norm."""
        return torch.linalg.vector_norm(self.response.at(w)[..., 0], dim=0)

    def read(self, k: int) -> Tensor:
        """A read-out (n,) of the k-th state; for a diagonal one both members of the k-th pair."""
        C = torch.zeros(self.n, dtype=self.A.dtype)
        C[k] = 1
        if self.A.is_complex():
            C[k + self.n // 2] = 1
        return C

    def gain(self, C: Tensor, w: Tensor) -> Tensor:
        """G(i w) = C H(w), complex (k,)."""
        return torch.einsum("n,nk->k", C.to(torch.complex128), self.response.at(w)[..., 0])


def start(name: str, n: int) -> Start:
    """The system of that name with n states."""
    check_choice("start", "init", name, NAMES)
    if n < LEAST.get(name, 2):
        raise ValueError(f"{name} needs at least 2 states, a conjugate pair, got n = {n}; legs takes any number.")
    if name not in LEAST and n % 2:
        raise ValueError(f"{name} keeps conjugate pairs: n must be even, got {n}; use {n + 1}.")
    if name == "legs":
        A, B = hippo("legs", n)
        return Start(name, A, B, A.diagonal().to(torch.complex128), dense_response(A, B), True)
    if name == "s4d-legs":
        return _normal(n)
    return _perturb(n) if name == "ptd" else _diagonal(name, n)


def _normal(n: int) -> Start:
    lam, _, b, V = dplr("legs", n, halves=False)
    A, B = ((V * lam) @ V.mH).real, (V @ b / 2).real
    return Start("s4d-legs", A, B, lam, EigenResponse(V, lam, b[:, None] / 2), True)


def _perturb(n: int) -> Start:
    found = legs_ptd(n)
    A, B = hippo("legs", n)
    b = (found.V_inv @ B.to(found.V.dtype))[:, None]
    return Start("ptd", A + found.E.real, B, found.lam, EigenResponse(found.V, found.lam, b), True)


def _diagonal(name: str, n: int) -> Start:
    lam, b = (t.to(torch.complex128) for t in SPECTRA[name.removeprefix("s4d-")](n))
    if name != "s4d-real":
        lam, b = torch.cat([lam, lam.conj()]).resolve_conj(), torch.cat([b, b.conj()]).resolve_conj()
    eye = torch.eye(n, dtype=torch.complex128)
    A, B = torch.diag(lam), b
    if name == "s4d-real":
        A, B = A.real, B.real
    return Start(name, A, B, lam, EigenResponse(eye, lam, b[:, None]), False)
