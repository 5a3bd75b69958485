"""The scan between its products: the path of torch, and which inputs one kernel would take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.mimo import simulate
from resolvent.ops.projected_scan import operation as projected
from resolvent.ops.projected_scan.operation import projected_reference, projected_scan


def inputs(d: int, b: int, l: int, p: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    lam = torch.view_as_real(torch.polar(torch.rand(p) * 0.3 + 0.69, torch.rand(p) * 6))
    rest = [torch.randn(2 * p, d), torch.randn(d, 2 * p), torch.randn(d, b, l)]
    return [t.to(dtype) for t in (lam, *rest)]


@pytest.mark.parametrize("function", [projected_scan, projected_reference], ids=["path", "reference"])
@pytest.mark.parametrize(("d", "b", "l", "p"), [(5, 2, 21, 3), (1, 1, 1, 1), (3, 4, 8, 17)])
def test_against_simulation(function: object, d: int, b: int, l: int, p: int) -> None:
    own = [t.requires_grad_() for t in inputs(d, b, l, p)]
    lam, W_in, W_out, x = own
    B, C = torch.complex(W_in[0::2], W_in[1::2]), torch.complex(W_out[:, 0::2], -W_out[:, 1::2])
    nothing = torch.zeros(d, dtype=x.dtype)
    want = simulate(torch.view_as_complex(lam), B, C, nothing, x.permute(1, 2, 0), 1.0).permute(2, 0, 1)
    got = function(*own)  # type: ignore[operator]
    g = torch.randn_like(got)
    assert_close(got, want)
    found = (torch.autograd.grad(y, own, g, allow_unused=True) for y in (got, want))
    for a, c in zip(*found, strict=True):
        assert_close(a, torch.zeros_like(a) if c is None else c, gradient=True)


@pytest.mark.parametrize(
    ("shape", "suits"),
    [
        ((128, 256, 1024, 64), True),
        ((100, 96, 1, 20), True),
        ((128, 256, 65536, 128), True),
        ((129, 256, 16, 64), False),
        ((64, 256, 16, 129), False),
        ((64, 256, 16, 4), False),  # so few states that three passes are no more bytes
        ((128, 8, 1024, 64), False),  # a batch that leaves the device empty
        ((128, 256, 0, 64), False),
    ],
)
def test_which_shapes_one_kernel_takes(shape: tuple[int, int, int, int], suits: bool) -> None:
    d, b, l, p = shape
    lam, W_in, W_out = inputs(d, 1, 1, p, torch.bfloat16)[:3]
    x = torch.empty((d, b, l), dtype=torch.bfloat16, device="meta")
    assert projected._suits(lam, W_in, W_out, x) == suits
    assert not projected._suits(lam, W_in.float(), W_out, x)


def test_only_bfloat16_on_a_gpu_asks_for_the_kernel() -> None:
    assert projected._triton(torch.zeros(2, 40, 3)) is None
    assert projected._triton(torch.zeros(2, 40, 3, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize("wrong", ["nothing", "forward", "input_gradient"])
def test_the_probe_knows_right_from_wrong(wrong: str) -> None:
    def forward(w: tuple[Tensor, ...], x: Tensor) -> Tensor:
        return projected_reference(*w, x) + (0.1 if wrong == "forward" else 0.0)

    def input_gradient(w: tuple[Tensor, ...], g: Tensor, beside: Tensor) -> Tensor:
        x = torch.zeros_like(g).requires_grad_()
        with torch.enable_grad():
            y = projected_reference(*w, x)
        found = torch.autograd.grad(y, x, g)[0] + beside
        return found.flip(-1) if wrong == "input_gradient" else found

    kernels = SimpleNamespace(Tables=lambda *w: w, forward=forward, input_gradient=input_gradient)
    assert projected._probe(kernels, torch.device("cpu"), torch.float32) == (wrong == "nothing")
