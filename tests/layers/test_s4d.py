"""S4D against its closed-form kernel, scipy, LegS's transfer function, and dense two-sided sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.init.spectra import legs
from resolvent.layers.s4d import S4D
from resolvent.ssm.hippo import dplr, hippo


def parts(layer: S4D) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lam, B, C, dt of a complex layer, read off its parameters."""
    assert layer.frequency is not None
    lam = torch.complex(-layer.log_decay.exp(), layer.frequency)
    return lam, torch.view_as_complex(layer.B), torch.view_as_complex(layer.C), layer.log_dt.exp()[:, None]


def zoh_kernel(layer: S4D, C: Tensor, length: int) -> Tensor:
    """K_l = 2 Re sum C B (e^{dt lam} - 1) / lam e^{l dt lam}, (d, l)."""
    lam, B, _, dt = parts(layer)
    gain = C * B * (torch.exp(dt * lam) - 1) / lam
    return 2 * torch.einsum("dn,dnl->dl", gain, torch.exp((dt * lam)[..., None] * torch.arange(length))).real


def impulse(length: int, d: int, at: int = 0) -> Tensor:
    u = torch.zeros(1, length, d, dtype=torch.float64)
    u[:, at] = 1
    return u


@pytest.mark.parametrize("init", ["legs", "lin", "inv"])
def test_impulse_response_is_the_kernel(init: str) -> None:
    layer = S4D(4, 64, init=init).double()
    y, _ = layer(impulse(300, 4))
    kernel = zoh_kernel(layer, parts(layer)[2], 300)
    kernel[:, 0] += layer.D
    assert_close(y[0].T, kernel)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_real_spectrum_equals_scipy(method: str) -> None:
    signal = pytest.importorskip("scipy.signal")
    layer = S4D(2, 6, init="real", discretisation=method).double()
    x = torch.randn(1, 90, 2, dtype=torch.float64)
    y, _ = layer(x)
    for c in range(2):
        A = -np.diag(layer.log_decay[c].detach().exp().numpy())
        B, C = layer.B[c, :, None].detach().numpy(), layer.C[None, c].detach().numpy()
        dt, u = float(layer.log_dt[c].exp()), x[0, :, c].numpy()
        A_bar, B_bar, *_ = signal.cont2discrete((A, B, C, [[0.0]]), dt, method)
        # scipy's form reads the old state: y_k = C x_k with x_{k+1} = A x_k + B u_k, one step late
        _, late, _ = signal.dlsim((A_bar, B_bar, C, [[0.0]], dt), np.append(u, 0.0))
        if method == "bilinear":  # cont2discrete also moves C and D; ours keeps C and B_bar = (I - dt/2 A)^-1 dt B
            _, late, _ = signal.dlsim(
                (A_bar, np.linalg.solve(np.eye(6) - dt / 2 * A, dt * B), C, [[0.0]], dt), np.append(u, 0.0)
            )
        want = torch.from_numpy(late[1:, 0]) + layer.D[c] * x[0, :, c]
        assert_close(y[0, :, c], want)


def test_half_of_legs_matches_the_hippo_system_at_zero_frequency() -> None:
    """With B_hippo / 2 the diagonal system has LegS's gain C_0 at w = 0 exactly; without the half it has twice that."""
    _, _, _, V = dplr("legs", 32)
    lam, B = legs(32)
    C = torch.randn(32, dtype=torch.float64)
    gain = 2 * ((C.to(V.dtype) @ V) * B / -lam).real.sum()
    assert_close(gain / 2, C[0])
    A, B_hippo = hippo("legs", 32)
    assert_close(-C @ torch.linalg.solve(A, B_hippo), C[0])


def test_conjugate_halves_are_exactly_the_full_system() -> None:
    layer, x = S4D(3, 16).double(), torch.randn(2, 40, 3, dtype=torch.float64)
    y_full, _ = layer.system().block_diagonal().simulate(x)
    assert float(y_full.imag.abs().max()) < 1e-12
    assert_close(layer(x)[0], y_full.real)


@pytest.mark.parametrize("length", [1, 2, 130])
def test_backward_direction_sees_the_strict_future(length: int) -> None:
    layer, x = S4D(3, 8, init="lin", bidirectional=True).double(), torch.randn(2, length, 3, dtype=torch.float64)
    assert layer.C_back is not None
    ahead, behind = (zoh_kernel(layer, C, length) for C in (parts(layer)[2], torch.view_as_complex(layer.C_back)))
    want = x * layer.D
    for t in range(length):
        for s in range(length):
            if s <= t:
                want[:, t] += ahead[:, t - s] * x[:, s]
            else:
                want[:, t] += behind[:, s - t - 1] * x[:, s]
    assert_close(layer(x)[0], want)
    if length == 130:
        lengths = torch.tensor([130, 71])
        y = layer(x, lengths=lengths)[0]
        assert_close(y[1:, :71], layer(x[1:, :71])[0])


def test_state_is_the_input_seen_through_the_decay() -> None:
    layer = S4D(1, 2, init="lin").double()
    _, state = layer(impulse(100, 1))
    lam, _, _, dt = parts(layer)
    assert_close(state[0], torch.exp(99 * dt * lam))


def test_defaults_are_the_published_ones() -> None:
    layer = S4D(16)
    assert (layer.d_state, layer.n, layer.init, layer.discretisation) == (64, 32, "legs", "zoh")
    assert bool((layer.log_decay == math.log(0.5)).all())
    assert sum(p.numel() for p in layer.parameters()) == 16 * (32 + 32 + 64 + 64 + 1 + 1)
    state_group, plain = sorted(layer.optim_groups(), key=lambda g: "lr" not in g)
    assert (state_group["lr"], state_group["weight_decay"]) == (1e-3, 0.0)
    assert {id(p) for p in plain["params"]} == {id(layer.C), id(layer.D)}
    assert all("lr" not in g for g in S4D(2, lr=None).optim_groups())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 7}, "even"),
        ({"init": "legz"}, "init must be one of"),
        ({"discretisation": "euler"}, "discretisation must be one of"),
        ({"dt_min": 0.2}, "dt_min"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        S4D(4, **options)  # type: ignore[arg-type]
    assert S4D(4, 7, init="real").n == 7
