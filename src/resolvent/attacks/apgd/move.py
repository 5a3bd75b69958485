"""APGD's move (Croce & Hein 2020, algorithm 1): a step uphill, mixed with the last one, both inside the region."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.threat.region import Region
from resolvent.attacks.threat.threat import Threat
from resolvent.runtime.dispatch import choose, numba_or


def move_with_momentum(region: Region, x_adv: Tensor, x_old: Tensor, push: Tensor, momentum: float) -> Tensor:
    """z = P(x + push);  x <- P(x + a (z - x) + (1 - a)(x - x_old)), where a is the momentum; 1 means none."""
    new = region.project(x_adv + push)
    if momentum >= 1:
        return new
    pulled = torch.lerp(x_adv, new, momentum)
    return region.project(pulled.add_(x_adv - x_old, alpha=1 - momentum))


def move(
    threat: Threat, region: Region, x_adv: Tensor, x_old: Tensor, grad: Tensor, step: Tensor, momentum: float
) -> Tensor:
    """`move_with_momentum` by a step (b, 1, ...) along the steepest direction; compiled for Linf and L2 without mask,
    steps or band, with one eps for all channels."""
    whole = region.free is None and threat.scale(x_adv) is None and not threat.shaped
    if threat.norm == "l1" or not whole or not x_adv.numel():
        return torch_move(threat, region, x_adv, x_old, grad, step, momentum)
    code = choose("apgd move", _CANDIDATES, x_adv.device, x_adv.dtype)
    moved: Tensor = code(threat, region, x_adv, x_old, grad, step, momentum)
    return moved


def torch_move(
    threat: Threat, region: Region, x_adv: Tensor, x_old: Tensor, grad: Tensor, step: Tensor, momentum: float
) -> Tensor:
    return move_with_momentum(region, x_adv, x_old, step * threat.steepest(grad), momentum)


# -- choice of the kernel ---------------------------------------------------------------------------------------------


def _load_numba() -> Any:
    from resolvent.ops.ascent import apgd_numba

    return apgd_numba.move


def _probe(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    grad = torch.sin(1.7 * torch.arange(18)).to(dtype).view(2, 9)
    x, step = grad.abs(), torch.tensor([[0.4], [0.2]], dtype=dtype)
    same = True
    for norm in ("linf", "l2"):
        threat = Threat(norm, 0.2, (0.0, 1.0)).check(x)
        args = threat, threat.around(x), (x + 0.1 * grad).clamp(0, 1), x, grad, step, 0.75
        same &= torch.allclose(kernel(*args), torch_move(*args), atol=1e-5)
    return same


_CANDIDATES = numba_or(torch_move, _load_numba, _probe)
