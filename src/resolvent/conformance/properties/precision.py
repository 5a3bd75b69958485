"""The same layer in float32, on bfloat16 inputs and inside autocast, against float64 with the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject, widen
from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance


def float32(subject: Subject) -> Finding | Skip:
    """Values to 1e-5 of their scale and gradients to 1e-4; reported as the larger share of its tolerance."""
    return _against_float64(subject, torch.float32)


def bfloat16(subject: Subject) -> Finding | Skip:
    """Half inputs, float32 inside: outputs and gradients come back in bfloat16, right to 2e-2."""
    return _against_float64(subject, torch.bfloat16)


def autocast(subject: Subject) -> Finding | Skip:
    """The pass and its `backward()` inside autocast: outputs and gradients accurate to bfloat16."""
    layer, x = subject.build(torch.float32), subject.input().float()
    with torch.autocast(subject.device, torch.bfloat16):
        got = _outputs_and_gradients(subject, layer, x)
    want = _outputs_and_gradients(subject, widen(layer), x.double())
    return Finding(distance(got, want), GRADIENTS[torch.bfloat16])


def _against_float64(subject: Subject, dtype: torch.dtype) -> Finding:
    layer = subject.build(torch.float32)
    x = subject.input().to(dtype)
    got_y, got_g = _outputs_and_gradients(subject, layer, x)
    if got_y.dtype != dtype:
        return Finding(float("inf"), VALUES[dtype], f"outputs came in {got_y.dtype} for inputs in {dtype}")
    want_y, want_g = _outputs_and_gradients(subject, widen(layer), x.double())
    value, gradient = distance(got_y, want_y), distance(got_g, want_g)
    if gradient / GRADIENTS[dtype] > value / VALUES[dtype]:
        return Finding(gradient, GRADIENTS[dtype], "gradients")
    return Finding(value, VALUES[dtype], "values")


def _outputs_and_gradients(subject: Subject, layer: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    x = x.detach().requires_grad_()
    y, _ = layer(x)
    return y, drive.gradients(_linear(subject, y), [x, *drive.parameters(layer)])


def _linear(subject: Subject, y: Tensor) -> Tensor:
    """A weighted sum whose weights are exact in bfloat16: its gradient does not depend on rounded outputs."""
    weight = torch.randn(y.shape, generator=subject.generator(21)).bfloat16()
    return (weight.to(y) * y).sum()
