"""Layers that start from PTD: each is the dense system (LegS + E, B, C_0) itself, at initialisation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.init.spectra import legs_ptd
from resolvent.layers import DSS, LRU, S4, S4D, S5
from resolvent.ssm import System, discretise
from resolvent.ssm.hippo import dplr, hippo
from resolvent.ssm.response_grid import EigenResponse, dense_response, response_distance


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    """Parameters kept in float64 from the start, so that nothing is rounded."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def dense_output(A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt: Tensor, u: Tensor) -> Tensor:
    """u (l, m) through the zero-order hold of x' = A x + B u, y = C x + D u, by the dense matrix exponential."""
    y, _ = discretise(System(A, B, C.detach(), D.detach()), float(dt.detach())).simulate(u)
    return y


def both(half: Tensor) -> Tensor:
    return torch.cat([half, half.conj()], -1)


@pytest.mark.parametrize("n", [4, 12, 32])  # 12 is not shipped: the closed form
@pytest.mark.parametrize("skip", [True, False])
def test_s4d_is_the_dense_perturbed_legs(n: int, skip: bool) -> None:
    layer, result = S4D(2, n, init="ptd", skip=skip), legs_ptd(n)
    A, B = hippo("legs", n)
    C_0 = (both(torch.view_as_complex(layer.C)) @ result.V_inv).real  # C = C_0 V has one real C_0
    assert_close((C_0.cdouble() @ result.V)[:, : n // 2], torch.view_as_complex(layer.C))
    u = torch.randn(60, 2)
    y, _ = layer(u[None])
    for c in range(2):
        D = torch.zeros(1, 1) if layer.D is None else layer.D[c].reshape(1, 1)
        want = dense_output(A + result.E, B[:, None], C_0[c : c + 1], D, layer.log_dt[c].exp(), u[:, c : c + 1])
        assert_close(y[0, :, c : c + 1], want)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.5])
def test_s4d_and_s5_take_the_size_of_the_perturbation(size: float) -> None:
    """Against a perturbation along P P^T that is scaled by bisection, and its dense system."""
    n, (A, B) = 16, hippo("legs", 16)
    P = torch.sqrt(torch.arange(n) + 0.5)
    assert torch.linalg.eigvals(A + torch.outer(P, P)).real.diff().abs().max() < 1e-9  # normal: P is LegS's own
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        grown = middle * torch.linalg.matrix_norm(torch.outer(P, P), 2) / torch.linalg.matrix_norm(A, 2)
        low, high = (middle, high) if grown < size else (low, middle)
    perturbed = A + low * torch.outer(P, P)
    for layer in (S4D(1, n, init="ptd", perturbation=size), S5(1, n, init="ptd", perturbation=size)):
        if isinstance(layer, S4D):
            assert layer.frequency is not None
            lam = torch.complex(-layer.log_decay.exp(), layer.frequency)[0]
        else:
            lam = torch.view_as_complex(layer.lam)
        want = torch.linalg.eigvals(perturbed)
        near = (want[:, None] - both(lam.detach())).abs().min(0).values
        assert float(near.max()) < 1e-6  # one that kappa = 120 allows
    layer = S4D(1, n, init="ptd", perturbation=size, skip=False)
    C_0 = (both(torch.view_as_complex(layer.C)) @ legs_ptd(n, size).V_inv).real
    u = torch.randn(60, 1)
    want = dense_output(perturbed, B[:, None], C_0, torch.zeros(1, 1), layer.log_dt[0].exp(), u)
    assert_close(layer(u[None])[0][0], want)


def test_a_perturbation_that_makes_no_sense_is_refused() -> None:
    for kind in (S4D, S5):
        with pytest.raises(ValueError, match='set init="ptd"'):
            kind(2, 16, perturbation=0.1)
        for size in (0.0, -0.1, float("inf"), "much"):
            with pytest.raises(ValueError, match=r"above 0, such as 0\.1"):
                kind(2, 16, init="ptd", perturbation=size)


@pytest.mark.parametrize("n", [2, 8])
def test_dss_is_the_dense_perturbed_legs(n: int) -> None:
    layer, result = DSS(1, n, init="ptd", separate_dt=False), legs_ptd(2 * n)
    A, B = hippo("legs", 2 * n)
    b = result.V_inv @ B.cdouble()
    C_0 = (both(torch.view_as_complex(layer.W) / (2 * b[:n])) @ result.V_inv).real
    u = torch.randn(50, 1)
    want = dense_output(A + result.E, B[:, None], C_0, layer.D.reshape(1, 1), layer.log_dt[0, 0].exp(), u)
    assert_close(layer(u[None])[0][0], want)


@pytest.mark.parametrize(("n", "blocks", "conjugate"), [(8, 1, True), (8, 2, True), (8, 2, False), (6, 2, False)])
def test_s5_is_the_dense_perturbed_legs_by_blocks(n: int, blocks: int, conjugate: bool) -> None:
    layer, size = S5(3, n, blocks=blocks, conjugate=conjugate, init="ptd"), n // blocks
    with torch.no_grad():
        layer.log_step.fill_(-3.0)  # a dense system has one step
    result = legs_ptd(size)
    A = torch.block_diag(*[hippo("legs", size)[0] + result.E] * blocks)
    B, C = (torch.view_as_complex(t.detach()) for t in (layer.B, layer.C))  # (p, d), (d, p)
    rows, columns = B.unflatten(0, (blocks, -1)), C.unflatten(1, (blocks, -1))
    if conjugate:
        rows, columns = torch.cat([rows, rows.conj()], 1), torch.cat([columns, columns.conj()], 2)
    B_0 = (result.V @ rows).flatten(0, 1)
    C_0 = (columns @ result.V_inv).flatten(1)
    assert float(B_0.imag.abs().max()) < 1e-12  # B = V^-1 B_0 with a real B_0
    u = torch.randn(40, 3)
    want = dense_output(A, B_0.real, C_0.real, torch.diag(layer.D), torch.tensor(-3.0).exp(), u)
    assert_close(layer(u[None])[0][0], want)


def test_the_adjoint_instead_of_the_inverse_would_be_seen() -> None:
    """What the tests above rest on: V^* in place of V^-1 gives another system."""
    result = legs_ptd(8)
    B = hippo("legs", 8)[1].cdouble()
    assert float((result.V.mH @ B - result.V_inv @ B).abs().max()) > 0.1


def test_s4d_from_ptd_stays_close_to_legs_and_from_legs_does_not() -> None:
    """D of the layers' own systems with the identity read out: at least five times closer, at every channel."""
    A, B = hippo("legs", 32)
    reference = dense_response(A, B)
    closeness = {}
    for init, scale in (("legs", 0.5), ("ptd", 1.0)):
        layer = S4D(1, 32, init=init)
        lam = both(torch.complex(-layer.log_decay.exp(), layer.frequency))[0]
        b = both(torch.view_as_complex(layer.B))[0]
        V = legs_ptd(32).V if init == "ptd" else dplr("legs", 32, halves=False)[3]
        closeness[init] = response_distance(EigenResponse(V, lam.detach(), scale * b.detach()[:, None]), reference, 200)
    assert closeness["legs"].value == pytest.approx(20.290, abs=1e-3)
    assert 5 * closeness["ptd"].value < closeness["legs"].value


@pytest.mark.parametrize("make", [S4, S4D, DSS, S5, LRU])
def test_layers_can_be_built_without_memory(make: type) -> None:
    with torch.device("meta"):
        layer = make(4, 8)
    assert {p.device.type for p in layer.parameters()} == {"meta"}
    real = make(4, 8)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {k: v.shape for k, v in real.state_dict().items()}


@pytest.mark.parametrize("make", [S4D, DSS, S5])
def test_ptd_layers_can_be_built_without_memory(make: type) -> None:
    with torch.device("meta"):
        layer = make(4, 8, init="ptd")
    assert {p.device.type for p in layer.parameters()} == {"meta"}


def test_draws_repeat_with_the_seed() -> None:
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(S4D(2, 8, init="ptd", bidirectional=True))
    for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert layers[0].C_back is not None
    assert not torch.equal(layers[0].C, layers[0].C_back)


def test_without_skip_there_is_no_direct_term() -> None:
    layer = S4D(3, 8, skip=False)
    assert "D" not in dict(layer.named_parameters())
    assert float(layer.system().D.abs().max()) == 0


def test_odd_sizes_are_refused_where_halves_are_kept() -> None:
    with pytest.raises(ValueError, match="even"):
        S4D(2, 5, init="ptd")
    assert S5(2, 5, conjugate=False, init="ptd").lam.shape == (5, 2)
