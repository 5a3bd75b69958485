"""|lambda| < 1 for any parameter value, where the layer's parametrisation guarantees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject

SCALES = (1.0, 30.0, 1e4)


@torch.no_grad()
def stability(subject: Subject) -> Finding | Skip:
    """Parameters drawn at random up to 1e4 in size keep every eigenvalue inside the unit circle and free of NaN."""
    if not subject.traits.stable:
        return Skip("makes no promise for every parameter value")
    worst, inside = 0.0, True
    for salt, scale in enumerate(SCALES):
        for dtype in (torch.float64, torch.float32):
            layer = _scramble(subject, dtype, scale, salt)
            radius = float(torch.nan_to_num(_eigenvalues(layer, subject).abs(), nan=float("inf")).max())
            # a selective layer may keep its state for a step: exp(dt a) = 1 where dt underflows
            inside &= radius <= 1 if hasattr(layer, "linearise") else radius < 1
            worst = max(worst, radius)
    return Finding(0.0 if inside else max(worst - 1, 1e-300), 0.0, f"largest |lambda| {worst:.6g}")


def _scramble(subject: Subject, dtype: torch.dtype, scale: float, salt: int) -> nn.Module:
    layer = subject.build(dtype)
    generator = subject.generator(50 + salt)
    for p in layer.parameters():
        p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return layer


def _eigenvalues(layer: Any, subject: Subject) -> Tensor:
    """Eigenvalues of the layer's system, or of every step's if they depend on the input."""
    if hasattr(layer, "linearise"):
        x = subject.input(8)
        return layer.linearise(x.to(next(layer.parameters()).dtype)).A.lam
    system = layer.system()
    diagonal = hasattr(system.A, "lam") and not hasattr(system.A, "P")
    return system.A.lam if diagonal else torch.linalg.eigvals(system.A.dense())
