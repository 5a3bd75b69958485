"""Starting points of a search for E: the best of a few perturbations in closed form.

Each pulls A towards a normal matrix, E = t (N - A): towards its skew part plus a multiple of the identity, towards its
symmetric part, or away by a random matrix. For HiPPO-LegS the first is E = t P P^T with the P of its normal-plus-
low-rank form, and already gives kappa < 20 and D = 0.07 at t = 0.1, whatever the size n.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
RANDOM_SIZES = (0.03, 0.1, 0.3)


def perturbations(A: Tensor, seed: int = 0) -> Iterator[Tensor]:
    """Candidates for E, none first."""
    yield torch.zeros_like(A)
    for direction in (towards_skew(A), (A.mH - A) / 2):
        for t in SHARES:
            yield t * direction
    for size in RANDOM_SIZES:
        yield gaussian(A, size, seed)


def towards_skew(A: Tensor) -> Tensor:
    """mu I - (A + A^*) / 2, mu the median eigenvalue of the symmetric part: A plus it is skew plus mu I."""
    symmetric = (A + A.mH) / 2
    mu = torch.linalg.eigvalsh(symmetric).median()
    return mu * torch.eye(len(A), dtype=A.dtype) - symmetric


def gaussian(A: Tensor, size: float, seed: int) -> Tensor:
    """Independent normal entries, complex for a complex A, scaled to ||E||_2 = size ||A||_2."""
    import numpy as np

    rng = np.random.default_rng(seed)
    E = torch.from_numpy(rng.standard_normal(tuple(A.shape)))
    if A.is_complex():
        E = torch.complex(E, torch.from_numpy(rng.standard_normal(tuple(A.shape))))
    return E * (size * torch.linalg.matrix_norm(A, 2) / torch.linalg.matrix_norm(E, 2))
