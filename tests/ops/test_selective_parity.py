"""The selective scan against other projects' Mamba."""

from __future__ import annotations

import pytest
import torch
from linear_cases import every_backend
from selective_cases import draw
from torch import Tensor

from helpers import assert_close
from resolvent.scan import selective_scan, use


@every_backend
@pytest.mark.parametrize("length", [1, 32, 77])
def test_equals_mambapy(backend: str, length: int) -> None:
    mamba = pytest.importorskip("mambapy.mamba", reason="mambapy is in the `parity` extra")
    x = draw(2, length, 6, 4, extras=("D",))[:6]
    want = mamba.MambaBlock.selective_scan(None, *x)  # reads nothing of the block
    upstream = torch.randn_like(want)
    with use(backend):
        y, _ = selective_scan(*x)
        gradients = torch.autograd.grad(y, x, upstream)
    assert_close(y, want)
    assert_close(gradients, torch.autograd.grad(want, x, upstream), gradient=True)


@every_backend
def test_equals_transformers(backend: str) -> None:
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="transformers is in `parity`")
    scan = getattr(modeling, "mamba_selective_scan", None)
    if scan is None:
        pytest.skip("this version of transformers has no mamba_selective_scan")
    x = draw(2, 45, 6, 4, extras=("D", "z"), dtype=torch.float32)  # float32: theirs computes in it whatever it is given
    u, dt, A, B, C, D, z, _ = x

    def theirs() -> tuple[Tensor, Tensor]:
        y, h = scan(u.mT, dt.mT, A, B.mT, C.mT, D, z.mT, return_last_state=True)
        return y.mT, h

    given = [t for t in x if t is not None]
    y, h = theirs()
    upstream = torch.randn_like(y), torch.randn_like(h)
    want = torch.autograd.grad((y, h), given, upstream)
    with use(backend):
        got = selective_scan(*x)
        gradients = torch.autograd.grad(got, given, upstream)
    assert_close(got, (y, h))
    assert_close(gradients, want, gradient=True)
