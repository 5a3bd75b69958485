"""The kernels of `mimo_scan`, interpreted on the CPU, against the same pass in torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from resolvent.ops.mimo_scan import operation, triton
from resolvent.ops.mimo_scan.operation import run_by_torch


def _tables(p: int, d: int) -> list[Tensor]:
    lam = torch.polar(torch.linspace(0.5, 0.999, p, dtype=torch.float64), torch.linspace(0, 3, p, dtype=torch.float64))
    return [torch.view_as_real(lam), *(torch.randn(s, dtype=torch.float64) for s in ((2 * p, d), (d, 2 * p), (d,)))]


@pytest.mark.parametrize(
    ("b", "l", "p", "start", "lengths", "most"),
    [
        (1, 1, 1, True, None, 64),
        (2, 64, 17, False, None, 64),
        (2, 131, 3, True, None, 64),
        (3, 70, 5, True, (70, 64, 1), 64),
        (1, 450, 2, True, None, 3),  # stretches of several tiles
    ],
)
def test_values_and_gradients_are_those_of_float64(
    b: int, l: int, p: int, start: bool, lengths: tuple[int, ...] | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "MOST", most)
    torch.manual_seed(0)
    d = 4
    given = [torch.randn(b, l, d).double(), *([torch.randn(b, 2 * p).double()] if start else []), *_tables(p, d)]
    ends = None if lengths is None else torch.tensor(lengths)
    weights = torch.randn(b, l, d), torch.randn(b, 2 * p)

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [t.to(dtype).requires_grad_() for t in given]
        x, h0, tables = own[0], own[1] if start else None, own[1 + start :]
        if dtype == torch.float32:
            found = operation._MimoScan.apply(torch.float32, ends, x, h0, *tables)
        else:
            found = run_by_torch(tables, x, h0, ends)
        return [*found, *torch.autograd.grad(found, own, [w.to(dtype) for w in weights])]

    for i, (g, w) in enumerate(zip(slopes(torch.float32), slopes(torch.float64), strict=True)):
        assert (g.double() - w).norm() <= 2e-5 * w.norm(), i


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 70, 2).double(), *_tables(3, 2)]

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [t.to(dtype).requires_grad_() for t in given]
        if dtype == torch.float32:
            y, _ = operation._MimoScan.apply(torch.float32, None, own[0], None, *own[1:])
        else:
            y, _ = run_by_torch(own[1:], own[0], None, None)
        first = torch.autograd.grad(y.square().sum(), own, create_graph=True)
        return list(torch.autograd.grad(sum(t.square().sum() for t in first), own))

    for g, w in zip(slopes(torch.float32), slopes(torch.float64), strict=True):
        assert (g.double() - w).norm() <= 1e-4 * w.norm()


def test_products_in_half_stay_near() -> None:
    torch.manual_seed(0)
    tables, x = _tables(8, 6), torch.randn(2, 100, 6)
    y, end = operation._MimoScan.apply(torch.bfloat16, None, x, None, *(t.float() for t in tables))
    want = run_by_torch(tables, x.double(), None, None)
    for g, w in zip((y, end), want, strict=True):
        assert (g.double() - w).norm() <= 2e-2 * w.norm()
    assert y.dtype == end.dtype == torch.float32


def test_a_probe_tells_right_kernels_from_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    assert operation._probe(triton, here, torch.float32)
    right = triton.scan
    monkeypatch.setattr(triton, "scan", lambda *given: 1.01 * right(*given))
    assert not operation._probe(triton, here, torch.float32)
