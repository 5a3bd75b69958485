"""S4 against the dense HiPPO system, the computed kernel values and dense two-sided sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.s4 import S4
from resolvent.ssm import half_dplr
from resolvent.ssm.hippo import dplr, hippo


def hippo_layer(n: int, dt: float, **options: str) -> S4:
    """One channel of LegS with C = ones / sqrt(n) in HiPPO's own basis."""
    layer = S4(1, n, **options).double()  # type: ignore[arg-type]
    lam, P, B, V = dplr("legs", n)
    with torch.no_grad():
        layer.C.copy_(torch.view_as_real(torch.full((1, n), 1 / math.sqrt(n), dtype=V.dtype) @ V))
        layer.log_decay.copy_(torch.log(-lam.real))  # parameters were drawn in float32
        layer.frequency.copy_(lam.imag)
        layer.P.copy_(torch.view_as_real(P))
        layer.B.copy_(torch.view_as_real(B))
        layer.log_dt.fill_(math.log(dt))
        layer.D.zero_()
    return layer


def impulse_response(layer: S4, length: int) -> Tensor:
    u = torch.zeros(1, length, 1, dtype=torch.float64)
    u[:, 0] = 1
    return layer(u)[0][0, :, 0].detach()


def dense_kernel(n: int, dt: float, length: int) -> Tensor:
    """Powers of the dense bilinear HiPPO system."""
    A, B = hippo("legs", n)
    eye = torch.eye(n, dtype=A.dtype)
    A_bar = torch.linalg.solve(eye - dt / 2 * A, eye + dt / 2 * A)
    x = torch.linalg.solve(eye - dt / 2 * A, dt * B[:, None])
    values = []
    for _ in range(length):
        values.append(x.sum() / math.sqrt(n))
        x = A_bar @ x
    return torch.stack(values)


def test_kernel_values_n_4() -> None:
    K = impulse_response(hippo_layer(4, 0.1), 64)
    want = [0.27352609886928403, 0.1117196837636577, 0.0319969645506761, -9.6125931264e-05]
    assert_close(K[[0, 1, 2, 63]], torch.tensor(want, dtype=torch.float64))


def test_kernel_values_n_64() -> None:
    K = impulse_response(hippo_layer(64, 0.01), 1024)
    want = [0.05764826357493025, -0.028789280241760355, 0.03600691238492605, -2.05495878e-07]
    assert_close(K[[0, 1, 2, 1023]], torch.tensor(want, dtype=torch.float64))
    assert abs(float(K.sum()) - 0.12502222142772723) < 1e-10


def test_kernel_values_under_zero_order_hold() -> None:
    K = impulse_response(hippo_layer(64, 0.01, discretisation="zoh"), 4)
    assert abs(float(K[0]) - 0.035823778795436) < 1e-12
    assert abs(float(K[1]) - 0.009226733853454495) < 1e-12


@pytest.mark.parametrize(("n", "dt", "length"), [(4, 0.1, 64), (16, 0.02, 256), (64, 0.01, 1024), (64, 0.001, 1024)])
def test_kernel_equals_the_dense_one(n: int, dt: float, length: int) -> None:
    K, want = impulse_response(hippo_layer(n, dt), length), dense_kernel(n, dt, length)
    assert float((K - want).abs().max()) < 1e-10


def test_single_precision_kernel() -> None:
    exact, layer = dense_kernel(64, 0.01, 512), hippo_layer(64, 0.01).float()
    u = torch.zeros(1, 512, 1)
    u[:, 0] = 1
    assert_close(layer(u)[0][0, :, 0], exact, dtype=torch.float32)


@pytest.mark.parametrize("init", ["legs", "legt", "lagt", "fout"])
def test_every_hippo_start_is_stable(init: str) -> None:
    layer = S4(2, 16, init=init, rank=2).double()
    A = layer.system().A.dense().detach()
    assert float(torch.linalg.eigvals(A).abs().max()) < 1
    assert bool(layer(torch.randn(1, 70, 2, dtype=torch.float64))[0].isfinite().all())


def test_real_form_is_a_contraction() -> None:
    layer = S4(8, 32, n_ssm=2).double()
    norms = torch.linalg.matrix_norm(layer._bank().A, 2)
    assert float(norms.max()) < 1


def test_channels_in_a_group_share_their_spectrum() -> None:
    layer = S4(6, 8, n_ssm=2)
    assert layer.frequency.shape == (2, 4)
    lam, P, B, _ = half_dplr.continuous(layer._own())
    assert torch.equal(lam[0], lam[2])
    assert (lam.shape, P.shape, B.shape) == ((6, 4), (6, 4, 1), (6, 4))


@pytest.mark.parametrize("length", [1, 2, 90])
def test_backward_direction_sees_the_strict_future(length: int) -> None:
    layer, x = S4(2, 8, bidirectional=True).double(), torch.randn(2, length, 2, dtype=torch.float64)
    one = S4(2, 8).double()
    shared = {k: v for k, v in layer.state_dict().items() if k != "C_back"}
    kernels = []
    for C, D in ((layer.C, layer.D), (layer.C_back, torch.zeros(2))):
        one.load_state_dict({**shared, "C": C, "D": D})
        u, state, out = torch.zeros(1, 2, dtype=torch.float64), None, []
        for t in range(length):
            y_t, state = one.step(u + (t == 0), state)
            out.append(y_t[0])
        kernels.append(torch.stack(out))  # (l, d)
    want = torch.zeros_like(x)
    for t in range(length):
        for s in range(length):
            want[:, t] += (kernels[0][t - s] if s <= t else kernels[1][s - t - 1]) * x[:, s]
    assert_close(layer(x)[0], want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 5}, "even"),
        ({"init": "legt"}, "use rank=2"),
        ({"init": "hippo"}, "init must be one of"),
        ({"n_ssm": 3}, "n_ssm to divide"),
        ({"discretisation": "euler"}, "discretisation must be one of"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        S4(4, **options)  # type: ignore[arg-type]
