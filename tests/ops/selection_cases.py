"""What the tests of a selection and its scan share: random inputs, and a comparison with its operations in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.selective_scan import selection
from resolvent.ops.selective_scan.selection import Given, selected_scan


def draw(
    b: int, l: int, d: int, n: int, *, r: int = 2, taps: int = 0, gate: bool = False, start: bool = False
) -> Given:
    """Random inputs in float64."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    short = (normal(d, taps), normal(d)) if taps else (None, None)
    A = -2 * torch.rand(d, n, dtype=torch.float64)
    maps = (normal(2 + 2 * n, d) * d**-0.5, normal(d, 2), normal(d) - 1, A, normal(d))
    z, h0 = normal(b, l, d) if gate else None, normal(b, d, n) if start else None
    return Given(normal(b, l, 2 * d if taps else d), z, *short, *maps, h0)


def cast(given: Given, dtype: torch.dtype, wide: torch.dtype) -> Given:
    """As new leaves: sequences and maps in `dtype`, the rest in `wide`."""
    low = ("x", "z", "x_proj", "dt_proj")
    made = {k: None if t is None else t.to(dtype if k in low else wide) for k, t in given._asdict().items()}
    return Given(**{k: None if t is None else t.detach().clone().requires_grad_() for k, t in made.items()})


def derive(function: Any, given: Given, into: torch.dtype, padding: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """(y, last state) and the gradients of everything under fixed gradients of both."""
    outputs = list(function(given, into, padding))
    upstream = [torch.cos(torch.arange(t.numel(), dtype=torch.float64)).reshape(t.shape).to(t.dtype) for t in outputs]
    return outputs, list(torch.autograd.grad(outputs, [t for t in given if t is not None], upstream))


def compare(given: Given, dtype: torch.dtype, into: torch.dtype, padding: Tensor | None = None) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rounded = cast(given, dtype, wide)
    truth = cast(rounded, torch.float64, torch.float64)
    got, found = derive(selected_scan, rounded, into, padding)
    want, true = derive(selection._plain, truth, torch.float64, padding)
    assert [t.dtype for t in got] == [into, wide]
    assert [t.dtype for t in found] == [t.dtype for t in rounded if t is not None]
    for a, b in zip(got, want, strict=True):
        assert_close(a.double(), b, dtype=dtype)
    for a, b in zip(found, true, strict=True):
        assert_close(a.double(), b, dtype=dtype, gradient=True)


CASES = {
    "bare": draw(2, 5, 3, 2),
    "all": draw(1, 35, 4, 3, gate=True, start=True),
    "taps": draw(2, 9, 4, 2, taps=4),
    "taps and a state": draw(1, 7, 3, 1, taps=2, start=True),
}


def padded(given: Given) -> Tensor:
    """(b, l, 1): where the first sequence has four steps and the second two."""
    return (torch.arange(given.x.shape[1]) >= torch.tensor([4, 2])[: given.x.shape[0], None])[..., None]
