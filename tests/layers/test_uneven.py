"""Steps of uneven length: against matrix exponentials of dense systems in float64, with gradients; chunks and steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.init import timestep
from resolvent.layers import EMA, LRU, S4D, S5, S6, ScalarS6
from resolvent.layers.contract import Layer

LAYERS: dict[str, Any] = {
    "s4d": lambda: S4D(3, 8),
    "s4d-real": lambda: S4D(3, 4, init="real"),
    "s4d-bilinear": lambda: S4D(3, 8, discretisation="bilinear"),
    "s4d-no-skip": lambda: S4D(3, 8, skip=False),
    "s5": lambda: S5(3, 8),
    "s5-blocks": lambda: S5(3, 8, blocks=2, discretisation="bilinear"),
    "s5-whole": lambda: S5(3, 5, conjugate=False),
    "s6": lambda: S6(3, 4),
    "scalar-s6": lambda: ScalarS6(3, 4, abscissa=-0.1),
}
TIMES: dict[str, Any] = {
    "usual": lambda shape: torch.rand(shape, dtype=torch.float64) * 2 + 0.1,
    "tiny": lambda shape: torch.full(shape, 1e-300, dtype=torch.float64),
    "huge": lambda shape: torch.full(shape, 1e6, dtype=torch.float64),
    "all sizes": lambda shape: 10 ** (torch.rand(shape, dtype=torch.float64) * 16 - 10),
}


def case(name: str, l: int = 9, b: int = 2) -> tuple[Layer, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(b, l, 3, dtype=torch.float64)
    return layer, x, torch.rand(b, l, dtype=torch.float64) * 2 + 0.1


def held(A: Tensor, B: Tensor, time: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """A_bar and B_bar of one dense system for one step, the exact ones from the exponential of [[A, B], [0, 0]]."""
    n, m = B.shape
    if method == "bilinear":
        inverse = torch.linalg.inv(torch.eye(n, dtype=A.dtype) - time / 2 * A)
        return inverse @ (torch.eye(n, dtype=A.dtype) + time / 2 * A), inverse @ B * time
    if method == "euler":
        return torch.matrix_exp(time * A), time * B
    whole = torch.cat([torch.cat([A, B], 1), torch.zeros(m, n + m, dtype=A.dtype)])
    found = torch.matrix_exp(time * whole)
    return found[:n, :n], found[:n, n:]


def dense(layer: Any, x: Tensor, dt: Tensor) -> Tensor:
    """Step by step with dense matrices, written from the papers' equations."""
    rows = []
    for u, steps in zip(x, dt, strict=True):
        selects = isinstance(layer, S6 | ScalarS6)
        rows.append(_dense_selective(layer, u, steps) if selects else _dense_fixed(layer, u, steps))
    return torch.stack(rows)


def _dense_fixed(layer: Any, u: Tensor, steps: Tensor) -> Tensor:
    if isinstance(layer, S5):
        lam, B, C = (torch.view_as_complex(t) for t in (layer.lam, layer.B, layer.C))
        own = timestep.positive(layer.log_step)
        return _run(torch.diag(lam), B, layer.scale * C, u, steps, own, layer) + layer.D * u
    columns = []
    for c in range(layer.d_model):
        lam = -timestep.positive(layer.log_decay[c]) + 0j
        B, C = layer.B[c], layer.C[c]
        if layer.frequency is not None:
            lam = torch.complex(lam.real, layer.frequency[c])
            B, C = torch.view_as_complex(B), 2 * torch.view_as_complex(C)
        B, C = B[:, None] + 0j, C[None] + 0j
        own = timestep.positive(layer.log_dt[c]).expand(len(lam))
        y = _run(torch.diag(lam), B, C, u[:, c : c + 1], steps, own, layer)[:, 0]
        columns.append(y if layer.D is None else y + layer.D[c] * u[:, c])
    return torch.stack(columns, 1)


def _run(A: Tensor, B: Tensor, C: Tensor, u: Tensor, steps: Tensor, own: Tensor, layer: Any) -> Tensor:
    """A time step of its own for each state: time enters as diag(own)."""
    h, ys = torch.zeros(len(A), dtype=A.dtype), []
    scaled, driven = torch.diag(own + 0j) @ A, torch.diag(own + 0j) @ B
    for u_k, time in zip(u, steps, strict=True):
        A_bar, B_bar = held(scaled, driven, time, layer.discretisation)
        h = A_bar @ h + B_bar @ (u_k + 0j)
        ys.append((C @ h).real)
    return torch.stack(ys)


def _dense_selective(layer: Any, u: Tensor, steps: Tensor) -> Tensor:
    h, ys = torch.zeros(layer.d_model, layer.d_state, dtype=u.dtype), []
    for u_k, time in zip(u, steps, strict=True):
        own, B, C, A, D = _selected(layer, u_k)
        rows = []
        for c in range(layer.d_model):
            A_bar, B_bar = held(torch.diag(A[c]), B[:, None], own[c] * time, "euler")
            rows.append(A_bar @ h[c] + B_bar[:, 0] * u_k[c])
        h = torch.stack(rows)
        ys.append(h @ C + D * u_k)
    return torch.stack(ys)


def _selected(layer: Any, u_k: Tensor) -> tuple[Any, ...]:
    """dt (d,), B and C (n,), A (d, n) and D of one step."""
    softplus = torch.nn.functional.softplus
    if isinstance(layer, ScalarS6):
        own = softplus(layer.q @ u_k + layer.p).expand(layer.d_model)
        return own, layer.W_B @ u_k, layer.W_C @ u_k, layer.A, 0.0
    s, B, C = (layer.x_proj @ u_k).split([layer.dt_rank, layer.d_state, layer.d_state])
    return softplus(layer.dt_proj @ s + layer.dt_bias), B, C, -torch.exp(layer.A_log), layer.D


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_against_matrix_exponentials(name: str, times: str) -> None:
    layer, x, _ = case(name)
    dt = TIMES[times](x.shape[:2])
    x.requires_grad_()
    dt.requires_grad_()
    y, _ = layer(x, dt=dt)
    want = dense(layer, x, dt)
    assert float((y - want).detach().abs().max()) < 1e-10 * max(1.0, float(want.detach().abs().max()))
    weight = torch.randn_like(want)
    leaves = [x, dt, *layer.parameters()]
    got, exact = (torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True) for out in (y, want))
    for a, b in zip(got, exact, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert float((a - b).abs().max()) < 1e-9 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", LAYERS)
def test_even_steps_are_todays_pass_and_rates_are_even_steps(name: str) -> None:
    layer, x, dt = case(name)
    y, end = layer(x)
    one, last = layer(x, dt=torch.ones_like(dt))
    assert float((y - one).abs().max()) < 1e-12
    assert float((end - last).abs().max()) < 1e-12
    twice, _ = layer(x, rate=2.0)
    assert torch.equal(twice, layer(x, dt=torch.full_like(dt, 0.5))[0])


@pytest.mark.parametrize("name", LAYERS)
def test_chunks_steps_and_padding(name: str) -> None:
    layer, x, dt = case(name)
    y, end = layer(x, dt=dt)
    first, state = layer(x[:, :4], dt=dt[:, :4])
    rest, last = layer(x[:, 4:], state, dt=dt[:, 4:])
    assert float((torch.cat([first, rest], 1) - y).abs().max()) < 1e-11
    assert float((last - end).abs().max()) < 1e-11
    state, steps = None, []
    for k in range(x.shape[1]):
        y_t, state = layer.step(x[:, k], state, dt=dt[:, k])
        steps.append(y_t)
    assert float((torch.stack(steps, 1) - y).abs().max()) < 1e-11
    lengths = torch.tensor([9, 4])
    odd = dt.clone()
    odd[1, 4:] = float("nan")  # what padding holds counts for nothing
    padded, at = layer(x, lengths=lengths, dt=odd)
    short, short_end = layer(x[1:, :4], dt=dt[1:, :4])
    assert float((padded[1, :4] - short[0]).abs().max()) < 1e-12
    assert float((at[1] - short_end[0]).abs().max()) < 1e-12
    assert not bool(padded[1, 4:].any())


@pytest.mark.parametrize("name", ["s4d", "s5"])
def test_a_step_may_be_cut_in_two(name: str) -> None:
    """Zero-order hold is exact: an input that is held for 2 is the same input twice for 1."""
    layer, x, _ = case(name, l=4)
    twice = x.repeat_interleave(2, 1)
    y, end = layer(x, rate=0.5)
    z, last = layer(twice)
    assert float((y - z[:, 1::2]).abs().max()) < 1e-11
    assert float((end - last).abs().max()) < 1e-11


@pytest.mark.parametrize("name", ["s4d", "s4d-real", "s5", "s6"])
def test_under_transforms_and_the_compiler(name: str) -> None:
    layer, x, dt = case(name, l=5)
    y, _ = layer(x, dt=dt)
    rows = torch.func.vmap(lambda u, steps: layer(u[None], dt=steps[None])[0][0])(x, dt)
    assert float((rows - y).detach().abs().max()) < 1e-12
    compiled = torch.compile(layer, backend="aot_eager")
    leaves = [x.requires_grad_(), dt.requires_grad_(), *layer.parameters()]
    got, want = (torch.autograd.grad(f(x, dt=dt)[0].sum(), leaves, allow_unused=True) for f in (compiled, layer))
    for a, b in zip(got, want, strict=True):
        if a is not None and b is not None:
            assert float((a - b).abs().max()) < 1e-9 * max(1.0, float(b.abs().max()))


def test_a_step_takes_one_number_for_all() -> None:
    layer, x, _ = case("s5")
    want, _ = layer.step(x[:, 0], dt=torch.full((2,), 0.1, dtype=torch.float64))
    assert torch.equal(layer.step(x[:, 0], dt=0.1)[0], want)
    for wrong in (torch.ones(3), torch.ones(2, 1), torch.ones(2).long(), 0.0, -1.0):
        with pytest.raises(ValueError, match="dt must be"):
            layer.step(x[:, 0], dt=wrong)


def test_what_is_refused() -> None:
    x, dt = torch.randn(2, 5, 3), torch.ones(2, 5)
    for layer, message in ((EMA(3), "weights belong to steps"), (LRU(3), "eigenvalues belong to steps")):
        with pytest.raises(ValueError, match=message):
            layer(x, dt=dt)
        with pytest.raises(ValueError, match=message):
            layer(x, rate=2.0)
    layer = S4D(3, 4)
    for wrong in (dt[:, :4], dt.long(), 0 * dt, -dt, dt / 0, 1.0):
        with pytest.raises(ValueError, match="dt must be"):
            layer(x, dt=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rate must be"):
        layer(x, rate=0.0)
    with pytest.raises(ValueError, match="dt or rate"):
        layer(x, dt=dt, rate=1.0)
    with pytest.raises(ValueError, match="bidirectional"):
        S4D(3, 4, bidirectional=True)(x, dt=dt)


@pytest.mark.parametrize("name", ["s4d", "s5", "s6"])
def test_half_types_and_empty_sequences(name: str) -> None:
    layer, x, dt = case(name)
    layer = layer.float()
    want, _ = layer(x.float(), dt=dt.float())
    got, _ = layer(x.bfloat16(), dt=dt.float())
    assert got.dtype == torch.bfloat16
    assert float((got.float() - want).abs().max()) < 2e-2 * float(want.abs().max())
    empty, _ = layer(x[:, :0].float(), dt=dt[:, :0].float())
    assert empty.shape == (2, 0, 3)
