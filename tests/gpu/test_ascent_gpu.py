"""A step of an attack as one kernel on the GPU gives the bits of torch's operations."""

from __future__ import annotations

import math

import pytest
import torch

from resolvent.attacks import Threat
from resolvent.training.step.adversarial import plain_step

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
from resolvent.ops.ascent.step_triton import step


@pytest.mark.parametrize(("b", "shape"), [(1, (1, 1)), (5, (77, 3)), (256, (1024, 3)), (3, (65_537, 1))])
def test_the_same_bits(b: int, shape: tuple[int, ...]) -> None:
    x, grad, out = (torch.rand(b, *s, device="cuda") - 0.3 for s in (shape, shape, (10,)))
    losses = torch.rand(b, device="cuda")
    if b > 3:
        grad[0, 5, 0], losses[1], out[2, 1] = math.nan, math.inf, -math.inf
    threat = Threat("linf", torch.linspace(0.01, 0.3, b).cuda(), (-0.3, 0.7))
    region, size = threat.around(x), 0.25 * threat.radius(x)
    start = region.project(x + 0.01 * torch.randn_like(x))
    found = step(start, grad, (losses, out), region, size)
    assert found is not None
    assert torch.equal(found, plain_step(start, grad, (losses, out), region, size))
    assert b < 4 or (torch.equal(found[:3], start[:3]) and not torch.equal(found[3], start[3]))
