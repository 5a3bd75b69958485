"""Transposed copies against torch's own, for sizes that fill tiles, strips, and neither."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from resolvent.ops.blocked.layout import channels_first, channels_last
from resolvent.scan import use

SHAPES = [(1, 1, 1), (3, 9, 17), (5, 64, 8), (2, 7, 40), (2, 16, 200), (0, 4, 5), (4, 8, 64)]


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(shape: tuple[int, int, int], dtype: torch.dtype, backend: str) -> None:
    if backend == "numba" and find_spec("numba") is None:
        pytest.skip("the numba backend needs the `cpu` extra")
    r, t, d = shape
    x = torch.randn(t, d, r, dtype=dtype).permute(2, 0, 1)  # (r, t, d), in another order than it says
    with use(backend):
        first = channels_first(x)
        last = channels_last(first)
    assert torch.equal(first, x.permute(2, 0, 1))
    assert first.stride(-1) == 1 or not first.numel()
    assert torch.equal(last, x)
    assert last.is_contiguous()
