"""What perturb-then-diagonalise minimises over E, with A + E = V diag(lam) V^-1 and unit columns in V.

paper    kappa(V) + gamma ||E||_2                         Yu et al. 2024, "Robustifying state-space models for long
                                                          sequences via approximate diagonalization"
code     kappa(V)^2 + lam ||E||_F                         what its released code minimises
steady   kappa(V)^2 + size ||E||_F / ||A||_F              ours: scale-free, with two additional terms:
           + transfer (D / sup_w ||H(w)||)^2              the transfer function, on a grid that follows the poles
           + hinge sum_j (1 + Re(lam_j) / margin)_+^2     the spectrum stays left of -margin
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARPNESS = 8  # of the smooth maximum over frequencies: the p-norm of the squared distances


@dataclass(frozen=True)
class Terms:
    """The quantities available to an objective, for one E."""

    kappa: Tensor  # ()
    E: Tensor  # (n, n)
    lam: Tensor  # (n,), complex
    gaps: Tensor | None  # (k,): ||H_E(w) - H(w)||^2 / sup ||H||^2 on the current grid; None without B
    size: float  # ||A||_F
    abscissa: float  # largest real part of the spectrum of A


@dataclass(frozen=True)
class PaperObjective:
    """kappa + gamma ||E||_2: the larger gamma, the smaller E and the larger kappa. Neither stability nor D enters.

    Examples:
        >>> rv.init.PaperObjective(gamma=0.3).gamma
        0.3
    """

    gamma: float = 0.3
    uses_response = False

    def value(self, terms: Terms) -> Tensor:
        return terms.kappa + self.gamma * torch.linalg.matrix_norm(terms.E, 2)


@dataclass(frozen=True)
class CodeObjective:
    """kappa^2 + lam ||E||_F, the released code's; its runs on the Long Range Arena have lam = 3e-3 and a large E.

    Examples:
        >>> rv.init.CodeObjective(lam=3e-3).lam
        0.003
    """

    lam: float = 3.0
    uses_response = False

    def value(self, terms: Terms) -> Tensor:
        return terms.kappa**2 + self.lam * torch.linalg.matrix_norm(terms.E)


@dataclass(frozen=True)
class SteadyObjective:
    """The default; on HiPPO-LegS kappa, relative size and D are nearly the same at every n, hence the name.

    size      weight of the relative size of E: more of it trades a larger kappa for a smaller E
    transfer  weight of the squared relative D; without a B there is no transfer function and the term drops out
    hinge     weight of the stability term; used where A itself is stable
    margin    start of the hinge, as a share of A's own distance from the imaginary axis

    Examples:
        >>> rv.init.SteadyObjective().margin
        0.2
    """

    size: float = 1000.0
    transfer: float = 300.0
    hinge: float = 100.0
    margin: float = 0.2
    uses_response = True

    def value(self, terms: Terms) -> Tensor:
        total = terms.kappa**2 + self.size / max(terms.size, 1e-300) * torch.linalg.matrix_norm(terms.E)
        if terms.gaps is not None:
            total = total + self.transfer * _smooth_maximum(terms.gaps)
        if terms.abscissa < 0:
            total = total + self.hinge * torch.relu(1 - terms.lam.real / (self.margin * terms.abscissa)).square().sum()
        return total


Objective = PaperObjective | CodeObjective | SteadyObjective


def _smooth_maximum(gaps: Tensor) -> Tensor:
    """The p-norm, at or above the maximum: its gradient includes every frequency close to it."""
    top = gaps.detach().max().clamp_min(1e-300)
    return top * ((gaps / top).pow(SHARPNESS).sum() + 1e-30).pow(1 / SHARPNESS)  # a root of zero has no slope
