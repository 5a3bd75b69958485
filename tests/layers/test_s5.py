"""S5: initial values, discretisation, conjugate symmetry, and parity with the s5-pytorch package."""

from __future__ import annotations

import math

import agreement
import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.s5 import S5


def pairs(z: Tensor) -> Tensor:
    return torch.view_as_real(z.resolve_conj()).clone()


def legs_normal_part(n: int) -> Tensor:
    """A_LegS + P P^T, P = sqrt(k + 1/2), entry by entry."""
    A = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            lower = -math.sqrt((2 * i + 1) * (2 * j + 1)) if i > j else -(i + 1.0) if i == j else 0.0
            A[i, j] = lower + math.sqrt((i + 0.5) * (j + 0.5))
    return A


@pytest.mark.parametrize(
    ("d_state", "blocks", "conjugate"), [(64, 1, True), (24, 3, True), (24, 3, False), (9, 3, False)]
)
def test_spectrum_starts_as_legs_on_every_block(d_state: int, blocks: int, conjugate: bool) -> None:
    layer = S5(4, d_state, blocks=blocks, conjugate=conjugate)
    lam = torch.view_as_complex(layer.lam.detach()).to(torch.complex128).reshape(blocks, -1)
    want = torch.linalg.eigvals(legs_normal_part(d_state // blocks))
    want = want[want.imag.argsort()]
    want = want[want.imag > 0] if conjugate else want
    for block in lam:
        assert_close(block[block.imag.argsort()], want, dtype=torch.float32)
    if d_state == 64:
        assert abs(lam.imag.max().item() - 1303.274) < 1e-2


def test_initial_values_are_matrices_in_the_eigenbasis() -> None:
    """V^* B_0 and C_0 V have the variances of B_0 and C_0, and come back real through the conjugate closure."""
    layer = S5(300, 64, blocks=2)
    assert layer.B.shape == (32, 300, 2)
    assert layer.C.shape == (300, 32, 2)
    assert abs(layer.B.square().sum(-1).mean().item() * 64 - 1) < 0.05
    assert abs(layer.C.square().sum(-1).mean().item() * 64 / 2 - 1) < 0.05  # C_0 has two parts of variance 1/64
    steps = layer.log_step.exp()
    assert 1e-3 * 0.999 <= steps.min() < steps.max() <= 0.1 * 1.001
    normal = S5(300, 64, c_init="complex_normal")
    assert abs(normal.C.square().sum(-1).mean().item() - 1) < 0.05


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_discretisation_equals_scipy(method: str) -> None:
    from scipy.signal import cont2discrete

    layer = S5(3, 6, discretisation=method, dt_min=0.05, dt_max=0.05).double()
    lam, B = torch.view_as_complex(layer.lam), torch.view_as_complex(layer.B)
    continuous = (torch.diag(lam).detach().numpy(), B.detach().numpy(), torch.eye(3).numpy(), torch.zeros(3, 3).numpy())
    A_bar, B_bar, *_ = cont2discrete(continuous, layer.log_step[0].exp().item(), method=method)
    got_lam, got_B = layer.discrete()
    assert_close(torch.diag(got_lam), torch.from_numpy(A_bar))
    assert_close(got_B, torch.from_numpy(B_bar))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_half_of_the_pairs_is_exactly_the_full_system(bidirectional: bool) -> None:
    half = S5(4, 10, bidirectional=bidirectional).double()
    full = S5(4, 10, conjugate=False, bidirectional=bidirectional).double()
    with torch.no_grad():
        for name in ("lam", "B", "C", *(["C_back"] if bidirectional else [])):
            z = torch.view_as_complex(getattr(half, name))
            axis = 1 if name.startswith("C") else 0
            getattr(full, name).copy_(pairs(torch.cat([z, z.conj()], axis)))
        full.log_step.copy_(half.log_step.repeat(2))
        full.D.copy_(half.D)
    x = torch.randn(2, 31, 4, dtype=torch.float64)
    assert_close(half(x)[0], full(x)[0])
    if not bidirectional:
        whole = full(x)[1]
        assert_close(whole, torch.cat([half(x)[1], half(x)[1].conj()], -1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_equals_s5_pytorch_in_values_and_gradients(bidirectional: bool, method: str) -> None:
    """Its functions take any dtype; its module is float32 only, keeps all states and has no factor 2."""
    theirs = pytest.importorskip("s5.s5_model", reason="s5-pytorch is in the parity extra")
    layer = S5(4, 6, conjugate=False, bidirectional=bidirectional, discretisation=method).double()
    x = torch.randn(2, 16, 4, dtype=torch.float64).requires_grad_()
    discretise = theirs.discretize_zoh if method == "zoh" else theirs.discretize_bilinear
    lam, B = torch.view_as_complex(layer.lam), torch.view_as_complex(layer.B)
    C = torch.view_as_complex(layer.C)
    if bidirectional:
        C = torch.cat([C, torch.view_as_complex(layer.C_back)], -1)
    lam_bar, B_bar = discretise(lam, B, layer.log_step.exp())
    want = torch.stack([theirs.apply_ssm(lam_bar, B_bar, C, layer.D, u, bidir=bidirectional)[0] for u in x])
    y = layer(x)[0]
    assert_close(y, want)
    variables, weight = [x, *layer.parameters()], torch.randn_like(x)
    expected = torch.autograd.grad((want * weight).sum(), variables)
    assert_close(list(torch.autograd.grad((y * weight).sum(), variables)), list(expected))


def test_equals_the_s5_pytorch_module_with_its_own_weights() -> None:
    theirs = pytest.importorskip("s5.s5_model", reason="s5-pytorch is in the parity extra")
    model = theirs.S5(5, 8, block_count=2, bcInit="dense")
    layer = S5(5, 8, blocks=2, conjugate=False).double()
    with torch.no_grad():
        for p in model.parameters():  # in float32 its (exp(dt lam) - 1) / lam is good to 1e-5 only
            p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
        layer.lam.copy_(pairs(model.seq.Lambda))
        layer.log_step.copy_(model.seq.log_step)
        layer.B.copy_(model.seq.B)
        layer.C.copy_(pairs(model.seq.C))
        layer.D.copy_(model.seq.D)
        x = torch.randn(3, 20, 5, dtype=torch.float64)
        want, state = model(x, return_state=True)
        y, end = layer(x)
    assert_close(y, want)
    assert_close(end, state)


def test_clip_holds_the_real_part() -> None:
    """clip=True maps Re(lam) > -1e-4 to -1e-4; clip=False lets a mode grow as the paper's plain form does."""
    for clip, largest in ((True, 1.0), (False, 2.0)):
        layer = S5(2, 4, clip=clip).double()
        with torch.no_grad():
            layer.log_step.fill_(math.log(0.5))
            layer.lam[:, 0] = 1.0
        modulus = layer.discrete()[0].abs()
        assert_close(modulus, torch.full_like(modulus, math.exp(-0.5e-4) if clip else math.exp(0.5)))
        assert (modulus < largest).all()


def test_optimiser_groups_are_data() -> None:
    layer = S5(4, 6, bidirectional=True)
    own, rest = sorted(layer.optim_groups(), key=len, reverse=True)
    assert {id(p) for p in own["params"]} == {id(p) for p in (layer.lam, layer.B, layer.log_step)}
    assert (own["lr"], own["weight_decay"]) == (1e-3, 0.0)
    assert {id(p) for p in rest["params"]} == {id(p) for p in (layer.C, layer.C_back, layer.D)}
    optimiser = torch.optim.AdamW(layer.optim_groups(), lr=4e-3, weight_decay=0.05)
    assert sorted((g["lr"], g["weight_decay"]) for g in optimiser.param_groups) == [(1e-3, 0.0), (4e-3, 0.05)]
    assert "lr" not in S5(4, 6, lr=None).optim_groups()[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_state": 7}, "even"),
        ({"d_state": 12, "blocks": 4}, "even"),
        ({"d_state": 8, "blocks": 3}, "divide"),
        ({"blocks": 0}, "blocks"),
        ({"discretisation": "euler"}, "'zoh', 'bilinear'"),
        ({"init": "lags"}, "init"),
        ({"c_init": "zeros"}, "c_init"),
        ({"dt_min": 0.0}, "dt_min"),
        ({"dt_min": 0.2}, "dt_max"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        S5(4, **settings)


@pytest.mark.slow
def test_long_streaming_in_float32_stays_near_float64() -> None:
    agreement.check_long_stream(S5(4, 8))
