"""The scan fused with its products on a GPU: bf16 against float64, awkward shapes, and the same bits twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from resolvent.ops.projected_scan import operation as projected
from resolvent.runtime import dispatch
from resolvent.scan import use

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BF16 = 2e-2


def inputs(d: int, b: int, l: int, p: int) -> list[Tensor]:
    lam = torch.polar(torch.rand(p) * 0.3 + 0.69, torch.rand(p) * 6)
    tables = torch.randn(2 * p, d) / d**0.5, torch.randn(d, 2 * p) / (2 * p) ** 0.5
    made = [torch.view_as_real(lam), *(t.bfloat16() for t in (*tables, torch.randn(d, b, l)))]
    return [t.cuda().contiguous() for t in made]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches and few states too, and never the other path."""
    monkeypatch.setattr(projected, "FEWEST", 1)
    monkeypatch.setattr(projected, "STATES", (1, 128))
    monkeypatch.setattr(projected, "run_unfused", None)


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm())


SHAPES = [
    (128, 5, 1024, 64), (128, 2, 777, 64), (100, 3, 136, 33), (24, 1, 1, 3), (64, 1, 65, 32), (128, 3, 200, 128),
    (64, 1, 65536, 64),
]  # fmt: skip


@pytest.mark.parametrize(("d", "b", "l", "p"), SHAPES)
def test_against_float64(d: int, b: int, l: int, p: int) -> None:
    given = inputs(d, b, l, p)
    wide = [t.double().requires_grad_() for t in given]
    with use("torch"):
        want = projected.projected_reference(*wide)
        g = torch.randn_like(want).bfloat16()
        truth = torch.autograd.grad(want, wide, g.double())
    for first in (0, 3):  # everything, and x alone as in an attack
        own = [t.clone().requires_grad_(i >= first) for i, t in enumerate(given)]
        got = projected.projected_scan(*own)
        assert got.isfinite().all()
        assert distance(got, want) <= BF16
        for a, c in zip(torch.autograd.grad(got, own[first:], g), truth[first:], strict=True):
            assert distance(a, c) <= BF16 if c.abs().max() > 0 else a.abs().max() == 0


def test_channels_last_and_broken_strides() -> None:
    lam, W_in, W_out, x = inputs(64, 4, 300, 32)
    want = projected.projected_reference(*(t.double() for t in (lam, W_in, W_out, x)))
    last = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    holes = torch.zeros(64, 4, 700, device="cuda", dtype=x.dtype)[..., 1:601:2].copy_(x)
    for moved in (last, holes):
        assert distance(projected.projected_scan(lam, W_in, W_out, moved), want) <= BF16


def test_the_same_bits_twice() -> None:
    given = [t.requires_grad_() for t in inputs(128, 40, 1000, 64)]
    g = torch.randn(128, 40, 1000, device="cuda").bfloat16()
    found = [torch.autograd.grad(projected.projected_scan(*given), given, g) for _ in range(2)]
    assert all(torch.equal(a, c) for a, c in zip(*found, strict=True))


def test_the_kernel_is_chosen() -> None:
    assert projected._triton(torch.zeros(16, 1, 1, device="cuda", dtype=torch.bfloat16)) is not None
    with use("torch"):
        assert projected._triton(torch.zeros(16, 1, 1, device="cuda", dtype=torch.bfloat16)) is None
    names = dispatch.available("projected_scan", projected.CANDIDATES, torch.device("cuda"), torch.bfloat16)
    assert names[0] == "triton"
