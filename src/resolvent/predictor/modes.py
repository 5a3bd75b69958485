"""A reduced system in modal form, to initialise a smaller S4D or S5.

A real system of r states has complex pairs and real eigenvalues. Both layers keep one of each pair and read 2 Re(C x);
a real eigenvalue takes one mode, with half of its residue. `layer.set_modes` sets them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.ssm import System

_SMALLEST = 1e-12  # of |lam_bar|: faster modes vanish after one step
_LARGEST = 1 - 1e-12


class Modes(NamedTuple):
    """lam_bar (..., k), B (..., k, m), C (..., p, k): y = 2 Re(C x); unused modes have C = 0."""

    lam_bar: Tensor
    B: Tensor
    C: Tensor

    @property
    def places(self) -> int:
        return self.lam_bar.shape[-1]


def modes_of(system: System) -> Modes:
    """The modal form of a real bank (...,) of dense systems, one mode per pair or real eigenvalue."""
    lam, V = torch.linalg.eig(system.A.dense())  # (..., r), (..., r, r)
    B = torch.linalg.solve(V, system.B.to(V.dtype))
    C = system.C.to(V.dtype) @ V
    real = lam.imag.abs() <= 1e-13 * lam.abs().clamp_min(1e-30)
    kept = real | (lam.imag > 0)
    C = C * torch.where(real, 0.5, 1.0)[..., None, :]
    order = (~kept).to(torch.int8).argsort(dim=-1, stable=True)  # kept ones first
    most = int(kept.sum(-1).max())
    order = order[..., :most]
    used = kept.gather(-1, order)
    lam = torch.where(used, lam.gather(-1, order), 0.0)
    B = B.gather(-2, order[..., None].expand(*order.shape, B.shape[-1]))
    C = C.gather(-1, order[..., None, :].expand(*order.shape[:-1], C.shape[-2], most))
    size = lam.abs().clamp(_SMALLEST, _LARGEST)
    lam = torch.where(lam.abs() > 0, lam / lam.abs().clamp_min(1e-300) * size, _SMALLEST)
    return Modes(lam, B, torch.where(used[..., None, :], C, 0.0))
