"""The kernels of `mimo_scan`, interpreted on the CPU, against the same pass in torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from resolvent.ops.mimo_scan import operation, rows_triton, triton
from resolvent.ops.mimo_scan.operation import run_by_torch


def _tables(p: int, d: int, delayed: bool = False) -> list[Tensor]:
    lam = torch.polar(torch.linspace(0.5, 0.999, p, dtype=torch.float64), torch.linspace(0, 3, p, dtype=torch.float64))
    shapes = (2 * p, d), (d, 2 * p), (d, d) if delayed else (d,)
    return [torch.view_as_real(lam), *(torch.randn(s, dtype=torch.float64) for s in shapes)]


def _slopes(
    given: list[Tensor], start: bool, ends: Tensor | None, weights: tuple[Tensor, ...], dtype: torch.dtype | None
) -> list[Tensor]:
    """Values and gradients with products in dtype, or by the truth in float64."""
    own = [t.to(torch.float64 if dtype is None else torch.float32).requires_grad_() for t in given]
    x, h0, tables = own[0], own[1] if start else None, own[1 + start :]
    if dtype is None:
        found = run_by_torch(tables, x, h0, ends)
    else:
        found = operation._MimoScan.apply(dtype, ends, x, h0, *tables)
    return [*found, *torch.autograd.grad(found, own, [w.to(own[0].dtype) for w in weights])]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize(
    ("b", "l", "p", "start", "lengths", "most"),
    [
        (1, 1, 1, True, None, 256),
        (2, 40, 17, False, None, 256),
        (1, 151, 3, True, None, 256),  # more chunks than are joined at a time
        (3, 70, 5, True, (70, 64, 1), 256),
        (2, 40, 33, False, (16, 17), 1),  # whole sequences, two blocks of recurrences
        (1, 90, 2, True, None, 3),  # chunks of 32 steps
    ],
)
def test_values_and_gradients_are_those_of_float64(
    b: int, l: int, p: int, start: bool, lengths: tuple[int, ...] | None, most: int, delayed: bool,
    dtype: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(triton, "MOST", most)
    monkeypatch.setattr(rows_triton, "NUMBERS", 256)  # several tiles
    torch.manual_seed(0)
    d = 5 if delayed else 4
    given = [torch.randn(b, l, d).double(), *([torch.randn(b, 2 * p).double()] if start else [])]
    given += _tables(p, d, delayed)
    ends = None if lengths is None else torch.tensor(lengths)
    weights = torch.randn(b, l, d), torch.randn(b, 2 * p)
    found, want = (_slopes(given, start, ends, weights, how) for how in (dtype, None))
    for i, (g, w) in enumerate(zip(found, want, strict=True)):
        assert g.dtype == torch.float32
        assert (g.double() - w).norm() <= close * w.norm(), i


@pytest.mark.parametrize("needed", [0, 2, 4])
@pytest.mark.parametrize("delayed", [False, True])
def test_gradients_of_some(needed: int, delayed: bool) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 20, 4), *(t.float() for t in _tables(3, 4, delayed))]
    given[needed].requires_grad_()
    x, *tables = given
    found, want = operation._MimoScan.apply(torch.float32, None, x, None, *tables), run_by_torch(tables, x, None, None)
    g, w = (torch.autograd.grad(y.square().sum(), given[needed])[0] for y, _ in (found, want))
    assert (g - w).norm() <= 1e-4 * w.norm()


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 70, 2).double(), *_tables(3, 2)]

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [t.to(dtype).requires_grad_() for t in given]
        if dtype == torch.float32:
            turned = own[0].mT.contiguous().mT  # what is not dense keeps its graph
            y, _ = operation._MimoScan.apply(torch.float32, None, turned, None, *own[1:])
        else:
            y, _ = run_by_torch(own[1:], own[0], None, None)
        first = torch.autograd.grad(y.square().sum(), own, create_graph=True)
        return list(torch.autograd.grad(sum(t.square().sum() for t in first), own))

    for g, w in zip(slopes(torch.float32), slopes(torch.float64), strict=True):
        assert (g.double() - w).norm() <= 1e-4 * w.norm()


def test_a_probe_tells_right_kernels_from_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    assert operation._probe(triton, here, torch.float32)
    right = triton.scan
    monkeypatch.setattr(triton, "scan", lambda *given: (1.01 * right(*given)[0], right(*given)[1]))
    assert not operation._probe(triton, here, torch.float32)
