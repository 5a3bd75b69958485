"""The LayerNorm of fused blocks, over columns, against torch's own; their Triton kernels are in tests/gpu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from helpers import assert_close
from resolvent.lowering.gpu.fused_torch import normalise, slope


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (5, 300), (64, 128)])
@pytest.mark.parametrize("skip", [True, False])
def test_against_layer_norm(dtype: torch.dtype, d: int, m: int, skip: bool) -> None:
    z, r, g = (torch.randn(d, m, dtype=dtype) for _ in range(3))
    bias, gamma, beta = (torch.randn(d, dtype=dtype) for _ in range(3))
    affine = torch.stack([bias, gamma, beta, torch.full_like(bias, 1e-2)])
    total = (z + bias[:, None] + (r if skip else 0)).requires_grad_()
    want = F.layer_norm(total.T, (d,), gamma, beta, 1e-2).T
    unit = z.clone()
    out, rstd = normalise(unit, r if skip else None, affine)
    gz = slope(g, unit, rstd, gamma)
    assert_close(out, want)
    assert_close(unit, F.layer_norm(total.T, (d,), eps=1e-2).T)
    if d > 1:
        assert_close(gz, torch.autograd.grad(want, total, g)[0], gradient=True)
