"""Steps of an attack through a whole stack on a CPU, in one call: what adversarial training spends its time on.

    x <- clamp(x + size sign(∂loss / ∂x), low, high),    z = W features(x) + bias,    ∂loss / ∂z = softmax(z) - target

That is the sign ascent of the cross-entropy with the probabilities `target` (b, k), one-hot for a label, and of the KL
divergence from them. A sample whose logits or gradient are not finite stays where it is. `step` says the same with
torch's operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.lowering.cpu import lanes
from resolvent.lowering.cpu.lanes_layout import Plan
from resolvent.ops.ascent.reference import sign_step
from resolvent.runtime.dispatch import choose, nothing, numba_or


@dataclass(frozen=True, eq=False)
class Path:
    """Where to, and how."""

    target: Tensor  # (b, k), the probabilities to get away from, or labels (b,)
    low: Tensor  # (b, l, c)
    high: Tensor  # (b, l, c)
    size: Tensor  # of a step, (b, 1, 1)
    steps: int


Readout = tuple[Tensor, Tensor | None]  # W (k, d) and bias (k,)


def run_loop(start: Tensor, plan: Plan, readout: Readout, path: Path) -> Tensor | None:
    """x (b, l, c) after the steps from `start`; None where no compiled walk takes them, or sizes or labels do not fit:
    steps one by one say what is wrong with these."""
    kernel = choose("pgd_loop", _CANDIDATES, start.device, start.dtype)
    fits = start.shape[1:] == (plan.l, plan.c) and start.dtype == plan.numbers.dtype and len(start) == len(path.target)
    if kernel is nothing or not fits or not _are_labels(path.target, readout[0].shape[0]):
        return None
    return _run(kernel, start, plan, readout, path)


def _are_labels(target: Tensor, k: int) -> bool:
    """Whether these are probabilities of k classes, or labels among them; one logit has neither."""
    if k == 1 or target.dim() == 2:
        return k > 1 and target.shape[1] == k
    low, high = torch.aminmax(target)
    return int(low) >= 0 and int(high) < k


def _run(kernel: Any, start: Tensor, plan: Plan, out: Readout, path: Path) -> Tensor:
    dtype, k = start.dtype, out[0].shape[0]
    W = out[0].detach().to(dtype)
    bias = W.new_zeros(k) if out[1] is None else out[1].detach().to(dtype)
    readout = torch.cat([W.t().reshape(-1), bias, W.reshape(-1)])
    target = path.target if path.target.dim() == 2 else F.one_hot(path.target, k)
    rest = torch.stack([target, target]).to(dtype)  # the first is room for logits
    box = torch.stack([bound.expand_as(start) for bound in (path.low, path.high)]).to(dtype)
    size = path.size.to(dtype).expand(len(start), 1, 1).reshape(-1).contiguous()
    x = start.detach().clone(memory_format=torch.contiguous_format)
    kernel(x, plan, readout, rest, box, size, path.steps)
    return x


def step(x: Tensor, z: Tensor, path: Path) -> Tensor:
    """One step from x with logits z (b, k) that depend on it: the slow truth."""
    slope = z.softmax(-1) - path.target
    (g,) = torch.autograd.grad(z, x, slope)
    seen = torch.cat([z.detach(), g.flatten(1)], 1)
    good = seen.isfinite().all(1)[:, None, None]
    return sign_step(x.detach(), g, path.size, good).clamp(path.low, path.high)


def _load() -> Any:
    from resolvent.lowering.cpu import pgd_loop_numba

    return pgd_loop_numba.run_loop


def _probe(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Two steps of two samples through one small block, against torch's operations."""
    plan, features = lanes.tiny(dtype)
    W = torch.tensor([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]], dtype=dtype)
    x = torch.tensor([[[1.0], [2.0]], [[-0.5], [0.75]]], dtype=dtype)
    path = Path(torch.eye(2, dtype=dtype), x - 0.3, x + 0.3, torch.full((2, 1, 1), 0.25, dtype=dtype), 2)
    want = x
    for _ in range(path.steps):
        with torch.enable_grad():
            at = want.detach().requires_grad_()
            want = step(at, features(at) @ W.t(), path)
    return torch.allclose(_run(kernel, x, plan, (W, None), path), want, rtol=1e-4, atol=1e-5)


_CANDIDATES = numba_or(nothing, _load, _probe)
