"""S6's whole pass and Mamba's inner one as one node each way, compiled on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.selective_scan import selection
from resolvent.ops.selective_scan.selection import Given, selected_scan
from resolvent.scan import use

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LOW = ("x", "z", "x_proj", "dt_proj")  # in the dtype of the products


def draw(b: int, l: int, d: int, n: int, taps: int) -> Given:
    """With taps as in Mamba; without with a gate and a first state."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, device="cuda")

    short = (normal(d, taps) * 0.5, normal(d)) if taps else (None, None)
    A = -torch.arange(1, n + 1, dtype=torch.float64, device="cuda").expand(d, n)
    maps = (normal(4 + 2 * n, d) * d**-0.5, normal(d, 4) * 0.5, normal(d) - 3, A, normal(d))
    z, h0 = (None, None) if taps else (normal(b, l, d), normal(b, d, n))
    return Given(normal(b, l, 2 * d if taps else d), z, *short, *maps, h0)


def leaves(given: Given, low: torch.dtype, wide: torch.dtype) -> Given:
    made = {k: None if t is None else t.detach().to(low if k in LOW else wide) for k, t in given._asdict().items()}
    return Given(**{k: None if t is None else t.clone().requires_grad_() for k, t in made.items()})


def derive(function: Any, given: Given, into: torch.dtype, padding: Tensor | None) -> list[Tensor]:
    """y, the last state and the gradient of everything."""
    outputs = function(given, into, padding)
    slopes = [
        torch.linspace(-1, 1, t.numel(), device="cuda", dtype=torch.float64).view_as(t).to(t.dtype) for t in outputs
    ]
    return [*outputs, *torch.autograd.grad(outputs, [t for t in given if t is not None], slopes)]


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("b", "l", "d", "n", "taps"), [(2, 77, 20, 3, 0), (1, 131, 72, 16, 4), (32, 256, 64, 16, 4), (3, 512, 256, 16, 0)]
)
def test_selection(b: int, l: int, d: int, n: int, taps: int, held: bool, low: torch.dtype) -> None:
    given = leaves(draw(b, l, d, n, taps), low, torch.float32)
    padding = (torch.arange(l, device="cuda") >= torch.arange(l, l - b, -1, device="cuda")[:, None])[..., None]
    hold = padding if held else None
    found = derive(selected_scan, given, torch.float32, hold)
    with use("torch"):
        want = derive(selection._plain, leaves(given, torch.float64, torch.float64), torch.float64, hold)
    assert found[0].dtype == torch.float32
    for k, (got, true) in enumerate(zip(found, want, strict=True)):
        assert_close(got.double(), true, dtype=low, gradient=k > 1)


def test_same_bits_every_time() -> None:
    given = leaves(draw(8, 300, 128, 16, 4), torch.bfloat16, torch.float32)
    first, second = (derive(selected_scan, given, torch.bfloat16, None) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
