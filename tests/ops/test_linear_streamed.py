"""Gradients that are written past the caches: the same numbers, and only where every row of them is aligned."""

from __future__ import annotations

import pytest
import torch

from resolvent.ops.linear_scan.kernels import compose_backward
from resolvent.ops.linear_scan.reference import reference_scan

linear_numba = pytest.importorskip("resolvent.ops.linear_scan.numba", reason="needs numba")

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    up, a, h = (torch.randn(shape, dtype=dtype, generator=g) for _ in range(3))
    return up, 0.7 * a, h, torch.randn(*shape[:-2], shape[-1], dtype=dtype, generator=g)


def assert_equal(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...]) -> None:
    for x, y in zip(got, want, strict=True):
        wide = torch.float32 if y.dtype in (torch.float32, torch.complex64) else torch.float64
        limit = {torch.float32: 1e-5, torch.float64: 1e-12}[wide]
        assert float((x - y).abs().max()) <= limit * float(y.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 5, 8, 12, 36])
@pytest.mark.parametrize("reverse", [False, True])
def test_small_rows_of_any_width(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, n: int, reverse: bool) -> None:
    monkeypatch.setattr(linear_numba, "LARGE", 0)
    given = inputs((3, 7, n), dtype)
    assert_equal(linear_numba.numba_backward(*given, reverse), compose_backward(reference_scan)(*given, reverse))


def test_large_gradients_are_streamed_and_right() -> None:
    up, a, h, h0 = inputs((3, 2801, 256), torch.float32)
    assert linear_numba._streams(up, up)
    assert not linear_numba._streams(up[:2], up[:2])
    assert_equal(
        linear_numba.numba_backward(up, a, h, h0, False), compose_backward(reference_scan)(up, a, h, h0, False)
    )


def test_rows_that_begin_between_vectors_are_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_numba, "LARGE", 0)
    assert linear_numba._streams(torch.empty(2, 3, 8), torch.empty(2, 3, 8))
    assert not linear_numba._streams(torch.empty(2, 3, 9), torch.empty(2, 3, 9))
    assert not linear_numba._streams(torch.empty(49)[1:].view(2, 3, 8), torch.empty(2, 3, 8))
    assert not linear_numba._streams(torch.empty(2, 1, 8), torch.empty(2, 3, 8))
