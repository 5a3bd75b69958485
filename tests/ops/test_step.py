"""One step of each recurrence: the compiled kernels against plain formulas, and only where nobody watches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.layers import EMA, LRU, S4D, S5, S6
from resolvent.ops.step.operation import bank_step, is_unwatched, mimo_step, selective_step
from resolvent.scan import use

pytest.importorskip("numba", reason="the compiled steps are in the `cpu` extra")
DTYPES = (torch.float32, torch.float64)
BATCHES = (1, 3, 70)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("complex_states", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_bank(batch: int, dtype: torch.dtype, complex_states: bool, direct: bool) -> None:
    d, n = 5, 7
    kind = torch.promote_types(dtype, torch.complex64) if complex_states else dtype
    lam, weight = torch.randn(d, n, dtype=kind), torch.randn(d, n, dtype=kind)
    u, h, D = torch.randn(batch, d, dtype=dtype), torch.randn(batch, d, n, dtype=kind), torch.randn(d, dtype=dtype)
    row = torch.view_as_real(weight.conj().resolve_conj()).flatten(-2) if complex_states else weight
    with use("numba"):
        y, new = bank_step(lam, row, D if direct else None)(u, h)
    truth = lam * h + u[..., None]
    assert_close(new, truth, dtype=dtype)
    read = (weight * truth).sum(-1)
    assert_close(y, (read.real if complex_states else read) + (D * u if direct else 0), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_mimo(batch: int, dtype: torch.dtype) -> None:
    d, p = 5, 3
    kind = torch.promote_types(dtype, torch.complex64)
    lam, B, C = torch.randn(p, dtype=kind), torch.randn(p, d, dtype=kind), torch.randn(d, p, dtype=kind)
    u, h, D = torch.randn(batch, d, dtype=dtype), torch.randn(batch, p, dtype=kind), torch.randn(d, dtype=dtype)
    W_in = torch.view_as_real(B).transpose(1, 2).reshape(2 * p, d)
    W_out = torch.stack([C.real, -C.imag], -1).flatten(1)
    with use("numba"):
        y, new = mimo_step(lam, W_in, W_out, D)(u, h)
    truth = lam * h + u.to(kind) @ B.mT
    assert_close(new, truth, dtype=dtype)
    assert_close(y, (truth @ C.mT).real + D * u, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("n", [1, 4, 17])
@pytest.mark.parametrize("by_library", [False, True])
def test_selective(monkeypatch: pytest.MonkeyPatch, batch: int, dtype: torch.dtype, n: int, by_library: bool) -> None:
    d, r = 6, 3
    dt_proj, dt_bias, D = torch.randn(d, r, dtype=dtype), 9 * torch.randn(d, dtype=dtype), torch.randn(d, dtype=dtype)
    A, x_proj = -torch.rand(d, n, dtype=dtype), torch.randn(r + 2 * n, d, dtype=dtype)
    u, h = torch.randn(batch, d, dtype=dtype), torch.randn(batch, d, n, dtype=dtype)
    monkeypatch.setattr("resolvent.ops.step.selective_numba.FEW", 0 if by_library else 1 << 20)
    with use("numba"):
        y, new = selective_step(x_proj, dt_proj, dt_bias, A, D)(u, h)
    s, B, C = (u @ x_proj.mT).split([r, n, n], -1)
    dt = torch.logaddexp((s @ dt_proj.mT + dt_bias).double(), torch.zeros((), dtype=torch.float64)).to(dtype)
    truth = torch.exp(dt[..., None] * A) * h + (dt * u)[..., None] * B[:, None]
    assert_close(new, truth, dtype=dtype)
    assert_close(y, (truth * C[:, None]).sum(-1) + D * u, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softplus_keeps_its_digits_everywhere(dtype: torch.dtype) -> None:
    """dt near zero as well: there log(1 + e^x) in floating point is e^x to the last digit, not 0."""
    from numba import vectorize

    from resolvent.runtime.exp_numba import softplus

    x = torch.cat([torch.linspace(-80, 80, 4001), torch.tensor([0.0, -0.0, 1e-6, 500.0])]).to(dtype)
    found = torch.from_numpy(vectorize(lambda t: softplus(t))(x.numpy()))
    exact = torch.log1p(torch.exp(-x.double().abs())) + x.double().clamp(min=0)
    assert float(((found - exact) / exact).abs().max()) < 8 * torch.finfo(dtype).eps


LAYERS = [S4D(6, 8), S4D(6, 8, init="real"), S5(6, 8), LRU(6, 4), S6(6, 4), EMA(6, 4)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_layer_steps_alike_watched_or_not(layer: nn.Module) -> None:
    x, state = torch.randn(3, 6), layer(torch.randn(3, 11, 6))[1].detach()
    with torch.no_grad():
        y, new = layer.step(x, state)
    y_watched, new_watched = layer.step(x.requires_grad_(), state)
    assert y_watched.requires_grad
    assert not y.requires_grad
    assert_close(y, y_watched.detach(), dtype=torch.float32)
    assert_close(new, new_watched.detach(), dtype=torch.float32)


def test_unwatched() -> None:
    x = torch.ones(2)
    assert is_unwatched(x, None)
    assert not is_unwatched(x.clone().requires_grad_())
    with torch.no_grad():
        assert is_unwatched(x.clone().requires_grad_())
    seen: list[bool] = []

    def f(t: Tensor) -> Tensor:
        seen.append(is_unwatched(t))
        return t * 2

    torch.func.vmap(f)(x)
    torch.func.jvp(f, (x,), (x,))
    assert seen == [False, False]
