"""L2RU: the prescribed gain for any parameters, its certificate, the published starting points, and the contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from agreement import (
    check_compiles,
    check_lengths,
    check_precision,
    check_streams,
    check_survives_init,
    check_transforms,
    inputs,
    jittered,
    undecayed,
)
from gain_oracle import control_matrices, exceeds, hinf, response
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from helpers import assert_close
from resolvent.layers.l2ru.forms import Matrices
from resolvent.layers.l2ru.layer import FORMS, L2RU
from resolvent.layers.l2ru.run import loop, sequence, states
from resolvent.ops.dense_scan.operation import halving
from resolvent.ssm import System, bounded_real

F64 = torch.float64


def drawn(form: str, index: int) -> L2RU:
    """A layer with random parameters of random size; one in twenty has 64 real states."""
    g = torch.Generator().manual_seed(1000 * FORMS.index(form) + index)  # type: ignore[arg-type]
    big = index % 20 == 0
    d = 64 if big and form == "complete" else int(torch.randint(1, 7, (), generator=g))
    pairs = 32 if big else int(torch.randint(1, 7, (), generator=g))
    gamma = 10 ** float(2 * torch.rand((), generator=g) - 1)  # 0.1 to 10
    layer = L2RU(d, None if form == "complete" else pairs, gamma, form=form, trainable_gamma=index % 3 == 0)
    scale = 10 ** float(3 * torch.rand((), generator=g) - 1)  # 0.1 to 100
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if name != "log_gamma":
                p.copy_(scale * torch.randn(p.shape, generator=g))
    return layer.to(F64 if index % 2 else torch.float32)


def assert_certified(layer: L2RU) -> None:
    certificate = layer.certificate()
    assert certificate.holds
    assert certificate.largest_eigenvalue < 0
    assert certificate.gamma == layer.gain()
    assert not exceeds(layer.system(), layer.gain())


@pytest.mark.parametrize("form", FORMS)
def test_any_parameters_keep_the_gain(form: str) -> None:
    """200 draws: the bounded-real matrix is negative, and the symplectic pencil finds no frequency above gamma."""
    for index in range(200):
        assert_certified(drawn(form, index))


@pytest.mark.parametrize("form", [pytest.param("complete", marks=pytest.mark.slow), "contraction", "diagonal"])
def test_absurd_training_keeps_the_gain(form: str) -> None:
    """100 steps of Adam at a rate of 3 that push the output up: gamma is approached, never passed."""
    torch.manual_seed(0)
    layer = L2RU(4, 4, 0.7, form=form)
    optimiser = torch.optim.Adam(layer.optim_groups(), lr=3.0)
    x = torch.randn(8, 40, 4)
    for _ in range(100):
        y, _ = layer(x)
        optimiser.zero_grad()
        (-y.square().sum()).backward()
        optimiser.step()
    assert all(p.isfinite().all() for p in layer.parameters())
    assert max(float(p.detach().abs().max()) for p in layer.parameters()) > 10
    assert_certified(layer)
    with torch.no_grad():
        reached = layer(x)[0].norm() / x.norm()
    assert reached > 0.5 * 0.7


def test_the_certificate_can_fail() -> None:
    """A system with a gain of 1.01 has no certificate for 1, and the oracle sees it too."""
    layer = L2RU(3, 4, 1.0).double()
    peak = hinf(layer.system(), 801)
    system = layer.system()
    louder = System(system.A, system.B, system.C * (1.01 / peak), system.D * (1.01 / peak), 1.0, delay=True)
    assert exceeds(louder, 1.0)
    assert not exceeds(louder, 1.02)
    real = louder.real()
    assert not bounded_real(real, 1.0, torch.eye(real.states, dtype=F64)).holds
    with pytest.raises(ValueError, match="gamma"):
        bounded_real(real, 0.0, torch.eye(real.states, dtype=F64))
    with torch.no_grad():
        next(layer.parameters()).fill_(float("nan"))
    assert not layer.certificate().holds


def test_gain_agrees_with_python_control() -> None:
    control = pytest.importorskip("control", reason="python-control is in the parity extra")
    torch.manual_seed(3)
    for form in FORMS:
        layer = jittered(L2RU(2, 2, 1.7, form=form))
        A, B, C, D = (M.real for M in control_matrices(layer.system().real()))
        outside = control.norm(control.ss(A, B, C, D, True), p="inf", method="scipy", print_warning=False)
        assert outside <= layer.gain()
        assert abs(outside - hinf(layer.system(), 801)) < 1e-3 * outside


@pytest.mark.parametrize(("gamma", "radius"), [(0.5, 0.98185), (2.0, 0.95419)])
def test_published_start_of_the_complete_form(gamma: float, radius: float) -> None:
    """Every |eig(A)| as published, and H-inf / gamma = .711: memory by construction."""
    for n in (4, 8):
        layer = L2RU(n, gamma=gamma, form="complete").double()
        moduli = np.abs(np.linalg.eigvals(control_matrices(layer.system())[0]))
        assert np.abs(moduli - radius).max() < 1e-5
        assert abs(hinf(layer.system(), 801) / gamma - 0.711) < 5e-4


def test_start_of_the_scan_forms() -> None:
    """diagonal: on its ring, untouched by B, C, D; contraction: the division shrinks .99 to about .95, H-inf to .37."""
    torch.manual_seed(0)
    moduli = L2RU(4, 500).system().A.lam.abs()
    assert 0.9599 < moduli.min() < 0.965
    assert 0.995 < moduli.max() <= 0.999
    layers = [L2RU(4, 8, 2.0, form="contraction", r_min=0.9899, r_max=0.99) for _ in range(20)]
    shrunk = [float(layer.system().A.lam.abs().mean()) for layer in layers]
    assert 0.945 < np.mean(shrunk) < 0.965
    peaks = [hinf(layer.double().system(), 201) / 2 for layer in layers]
    assert 0.3 < np.mean(peaks) < 0.45


def paper_matrices(layer: L2RU) -> tuple[np.ndarray, ...]:
    """A, B, C, D, P of the complete form as published, with inverses and a plain Cholesky factor, in numpy."""
    f = layer.free
    X11, X21, X22, C, Dt, S = (p.detach().numpy() for p in (f.X11.tril(), f.X21, f.X22.tril(), f.C, f.Dt, f.S))
    gamma, eye = layer.gain(), np.eye(len(C))
    Z = X21 @ X21.T + X22 @ X22.T + Dt.T @ Dt + eye
    beta = gamma**2 / (1 + math.exp(-float(f.alpha))) / np.linalg.norm(Z, 2)
    H11 = X11 @ X11.T + C.T @ C + beta * eye
    H12 = math.sqrt(beta) * (X11 @ X21.T + C.T @ Dt)
    V = beta * Z - gamma**2 * eye
    R = H12 @ np.linalg.inv(V) @ H12.T
    P = H11 - R
    Q = (eye - (S - S.T)) @ np.linalg.inv(eye + S - S.T)
    N = H12 @ np.linalg.inv(np.linalg.cholesky(-V)).T
    A = np.linalg.inv(np.linalg.cholesky(P)).T @ Q @ N.T
    return A, A @ np.linalg.inv(H12).T @ V, C, math.sqrt(beta) * Dt, P


def test_the_complete_form_is_the_published_one() -> None:
    """The same transfer function as (A, B, C, D) of the paper, whose bounded-real matrix is the closed form < 0."""
    torch.manual_seed(1)
    layer = jittered(L2RU(5, gamma=1.3, form="complete"), 0.3)
    A, B, C, D, P = paper_matrices(layer)
    margin = 1e-4  # the layer's own scaling by 1 - m, m < 2e-6, grows with the memory of A
    for angle in (0.0, 0.4, 1.5, math.pi):
        ours, theirs = (response(*K, angle) for K in (control_matrices(layer.system()), (A, B, C, D)))
        assert abs(ours - theirs) < margin * theirs
    M = np.block(
        [
            [A.T @ P @ A - P + C.T @ C, A.T @ P @ B + C.T @ D],
            [B.T @ P @ A + D.T @ C, B.T @ P @ B + D.T @ D - 1.69 * np.eye(5)],
        ]
    )
    assert np.linalg.eigvalsh(M).max() < 0
    f = layer.free
    X11, X21, X22 = (p.detach().numpy() for p in (f.X11.tril(), f.X21, f.X22.tril()))
    beta = float(D[0, 0] / f.Dt[0, 0]) ** 2
    tall = np.vstack([X11, math.sqrt(beta) * X21])
    closed = -tall @ tall.T - beta * scipy_block_diag(np.eye(5), X22 @ X22.T + np.eye(5))
    assert np.abs(M - closed).max() < 1e-10 * np.abs(P).max()


def scipy_block_diag(*blocks: np.ndarray) -> np.ndarray:
    import scipy.linalg

    return scipy.linalg.block_diag(*blocks)


@pytest.mark.parametrize("form", FORMS)
def test_precision_and_initial_values(form: str) -> None:
    torch.manual_seed(2)
    layer = jittered(L2RU(3, 3, 1.5, form=form, trainable_gamma=True))
    check_precision(layer, inputs(layer))
    check_survives_init(layer)


@pytest.mark.slow
def test_compiles() -> None:
    layer = L2RU(3, 3).double()
    check_compiles(layer, inputs(layer))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_contract(form: str) -> None:
    """What the conformance suite checks as well, with second gradients of everything and the compiler."""
    torch.manual_seed(2)
    layer = jittered(L2RU(3, 3, 1.5, form=form, trainable_gamma=True))
    x = inputs(layer)
    check_streams(layer, x)
    check_lengths(layer, x)
    check_transforms(layer, x)


@pytest.mark.parametrize("form", FORMS)
def test_vmap_over_parameters_is_a_loop(form: str) -> None:
    """An ensemble by stacked parameters: values, a stream's step and slopes, padded sequences among them."""
    ensemble = [jittered(L2RU(4, form=form, trainable_gamma=True)) for _ in range(3)]
    stacked, _ = stack_module_state(ensemble)  # type: ignore[arg-type]
    own = [dict(each.named_parameters()) for each in ensemble]
    x, lengths, base = inputs(ensemble[0], 2, 7), torch.tensor([7, 3]), ensemble[0]
    state = base.step(x[:, 0])[1].detach()

    def whole(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(base, p, (x,), {"lengths": lengths})[0]

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return whole(p, x).square().sum()

    assert_close(vmap(whole, (0, None))(stacked, x), torch.stack([whole(p, x) for p in own]))
    apart = torch.stack([x, 2 * x, -x])
    assert_close(vmap(whole)(stacked, apart), torch.stack([whole(p, each) for p, each in zip(own, apart, strict=True)]))
    found = vmap(grad(loss), (0, None))(stacked, x)
    want = [grad(loss)(p, x) for p in own]
    for name in own[0]:
        assert_close(found[name], torch.stack([each[name] for each in want]), gradient=True)
    ahead = vmap(lambda p: step_of(base, p, x[:, 1], state))(stacked)
    assert_close(ahead, torch.stack([step_of(base, p, x[:, 1], state) for p in own]))


def step_of(layer: L2RU, p: dict[str, Tensor], x_t: Tensor, state: Tensor) -> Tensor:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self) -> Tensor:
            return self.layer.step(x_t, state)[0]

    return functional_call(Step(), {f"layer.{name}": value for name, value in p.items()}, ())


def test_optimiser_groups() -> None:
    dynamics = {"free.turning.nu_log", "free.turning.theta_log"}
    assert undecayed(L2RU(3, 4, trainable_gamma=True)) == {"log_gamma", *dynamics}
    assert undecayed(L2RU(3, form="complete")) == {"free.alpha"}
    assert all(group["lr"] == 0.1 for group in L2RU(3, 4, lr=0.1).optim_groups())


@pytest.mark.parametrize("l", [1, 2, 3, 7, 64, 101])
def test_halving_is_the_loop(l: int) -> None:
    """Values and gradients for odd, even and single lengths, batch 1, with a dense matrix of norm one."""
    torch.manual_seed(l)
    A = torch.linalg.qr(torch.randn(5, 5, dtype=F64))[0]
    K = Matrices(A, *(torch.randn(s, dtype=F64) for s in ((5, 3), (3, 5), (3, 3))))
    leaves = [*K, torch.randn(1, l, 3, dtype=F64), torch.randn(1, 5, dtype=F64)]
    leaves = [t.requires_grad_() for t in leaves]
    K = Matrices(*leaves[:4])
    y = sequence(K, leaves[4], leaves[5], None)[0]
    x = states(K, leaves[4], leaves[5])
    want, end = loop(K, leaves[4], leaves[5])
    assert_close((y, x[:, -1]), (want, end))
    weight = torch.randn_like(y)
    got, slow = (torch.autograd.grad((out * weight).sin().sum(), leaves, materialize_grads=True) for out in (y, want))
    assert_close(got, slow)
    assert halving(A, torch.zeros(2, l, 5, dtype=F64), torch.ones(2, 5, dtype=F64)).shape == (2, l, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, "positive"),
        ({"gamma": -1.0}, "positive"),
        ({"gamma": float("nan")}, "positive"),
        ({"form": "zak"}, "form"),
        ({"form": "complete", "d_state": 3}, "square"),
        ({"form": "complete", "r_max": 0.9}, "ring"),
        ({"r_min": 0.9999}, "r_max"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        L2RU(4, **settings)


def test_gamma_must_be_a_number() -> None:
    with pytest.raises(TypeError, match="gamma"):
        L2RU(4, gamma="2")  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "m", "p"), [(5, 3, 3), (2, 4, 4), (1, 1, 1), (5, 2, 4), (3, 4, 1)])
def test_a_given_system_enters_with_a_proof_of_its_gain(n: int, m: int, p: int) -> None:
    """Of as many outputs as inputs, more or fewer: the layer reads and fills no more than there are."""
    torch.manual_seed(0)
    A, B, C, D = (torch.randn(shape, dtype=torch.float64) for shape in ((n, n), (n, m), (p, n), (p, m)))
    A = 0.8 * A / torch.linalg.matrix_norm(A, 2)
    turns = torch.exp(2j * torch.pi * torch.linspace(0, 1, 400, dtype=torch.float64))
    eye = torch.eye(n, dtype=torch.complex128)
    gain = max(_at(A, B, C, D, z * eye) for z in turns)
    layer = L2RU.from_system(A, B, C, D, None, 1.05 * gain)
    assert layer.certificate().holds
    u, x, want = torch.randn(2, 20, max(m, p), dtype=torch.float64), torch.zeros(2, n, dtype=torch.float64), []
    for u_t in u[..., :m].unbind(1):
        want.append(x @ C.mT + u_t @ D.mT)
        x = x @ A.mT + u_t @ B.mT
    y = layer(u)[0]
    assert_close(y[..., :p], torch.stack(want, 1))
    assert not y[..., p:].any()
    with pytest.raises(ValueError, match="raise gamma"):
        L2RU.from_system(A, B, C, D, None, 0.9 * gain)
    with pytest.raises(ValueError, match=r"expected a real C of shape"):
        L2RU.from_system(A, B, C[:0], D, None, gain)


def _at(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, D: torch.Tensor, z: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm((C + 0j) @ torch.linalg.solve(z - A, B + 0j) + D, 2))
