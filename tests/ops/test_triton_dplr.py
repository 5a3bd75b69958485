"""The kernels that make S4's tables and responses, interpreted on the CPU, against simulations in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from helpers import assert_close
from resolvent.layers import S4, s4
from resolvent.ops.dplr_bank import operation
from resolvent.ops.dplr_bank import triton as own
from resolvent.ops.modes.dense import DenseSource
from resolvent.ssm import dplr_response, half_dplr

CASES = {
    "legs": {},
    "one channel, one pair": {"d": 1, "n": 2},
    "rank two": {"rank": 2, "n_ssm": 2, "d": 4},
    "legt, at the edge": {"rank": 2, "init": "legt", "n": 10},
    "fout": {"init": "fout", "n_ssm": 3, "d": 3},
    "many states": {"n": 34},
    "long steps": {"dt": 30.0},
    "short steps": {"dt": 1e-7},
}


def _parameters(d: int = 2, n: int = 6, dt: float = 0.0, delay: bool = False, **how: object) -> list[Tensor]:
    torch.manual_seed(0)
    layer = S4(d, n, **how)  # type: ignore[arg-type]
    made = [p.detach().clone() for p in layer._source(layer.C, None if delay else layer.D).parameters]
    for p in made[1:4]:
        p += 0.1 * torch.randn_like(p)
    if dt:
        made[4].fill_(math.log(dt))
    return made


def _simulate(parameters: list[Tensor], T: int, delay: bool) -> tuple[Tensor, ...]:
    """K, M_in, M_out and A^T, transposed, one step after another."""
    bank = half_dplr.dense_bank(parameters, "bilinear", torch.complex)
    into, out, power = [bank.B], [bank.C if delay else (bank.C[:, None] @ bank.A)[:, 0]], bank.A
    for _ in range(T - 1):
        into.append((bank.A @ into[-1][..., None])[..., 0])
        out.append((out[-1][:, None] @ bank.A)[:, 0])
        power = power @ bank.A
    K = torch.stack([(bank.C * x).sum(-1) for x in into], 1)
    if bank.D is not None:
        K = torch.cat([K[:, :1] + bank.D[:, None], K[:, 1:]], 1)
    return K, torch.stack(into[::-1], 1), torch.stack(out, 1), power.mT


@pytest.mark.parametrize(("case", "delay"), [*((case, False) for case in CASES), ("legs", True), ("rank two", True)])
def test_tables_and_their_gradients_are_those_of_a_simulation(case: str, delay: bool) -> None:
    given, T = [p.requires_grad_() for p in _parameters(delay=delay, **CASES[case])], 16  # type: ignore[arg-type]
    K, M_in, M_out, power = _simulate(given, T, delay)
    shift = torch.nn.functional.pad(K, (1, 0))[:, :T] if delay else K
    lag = torch.arange(T) - torch.arange(T)[:, None]  # column less row
    toeplitz = torch.where(lag >= 0, shift[:, lag.clamp(min=0)], 0)
    made = own.make_tables(given, T, delay, torch.float32)
    want = [torch.cat([toeplitz.mT, M_out], 2), torch.cat([toeplitz, M_in], 2), power]
    assert_close(list(made[:3]), want, dtype=torch.float32)
    s = power.shape[-1]
    g = torch.randn(len(K), T + s, T + s, dtype=torch.float64)
    parts = g[:, :T, :T], g[:, :T, T:], g[:, T:, :T].mT, g[:, T:, T:]
    slopes = torch.autograd.grad((toeplitz, M_in, M_out, power), given, parts)
    for x, y in zip(own.parameter_gradients(given, g.float(), T, delay), slopes, strict=True):
        assert_close(x, y, gradient=True)


@pytest.mark.parametrize(
    ("case", "T"),
    [("legs", 21), ("legs", 1), ("one channel, one pair", 21), ("rank two", 21), ("legt, at the edge", 21)],
)
@pytest.mark.parametrize("linked", [False, True])
def test_responses_and_links_are_those_of_a_simulation(case: str, T: int, linked: bool) -> None:
    given = [p.requires_grad_() for p in _parameters(**CASES[case])]  # type: ignore[arg-type]
    want = _simulate(given, T, False)[: 4 if linked else 1]
    made = dplr_response._Made.apply(half_dplr.dense_bank, "bilinear", T, linked, *given)
    assert_close(list(made), list(want), dtype=torch.float32)
    g = [torch.randn_like(t) for t in want]
    slopes = torch.autograd.grad(want, given, g)
    for x, y in zip(torch.autograd.grad(made, given, [t.float() for t in g]), slopes, strict=True):
        assert_close(x, y, gradient=True)


def test_rows_are_powers_of_a_matrix_that_scipy_discretised() -> None:
    given, T = _parameters(d=2, n=8, delay=True), 16
    made = own.make_tables(given, T, True, torch.float32)
    decay, frequency, P, B, log_dt, C = (p.double().numpy() for p in given)
    lam, column, b = -np.exp(decay[0]) + 1j * frequency[0], P[0] @ [1, 1j], B[0] @ [1, 1j]
    both = np.concatenate([column, column.conj()])  # the full system, with both of each conjugate pair
    A = np.diag(np.concatenate([lam, lam.conj()])) - both @ both.conj().T
    for i in range(2):
        read = np.concatenate([C[i] @ [1, 1j], C[i] @ [1, -1j]])[None]
        whole = np.concatenate([b, b.conj()])[:, None]
        Ad, Bd, *_ = scipy.signal.cont2discrete((A, whole, read, np.zeros((1, 1))), np.exp(log_dt[i]), "bilinear")
        power = np.linalg.matrix_power(Ad, T)
        real = lambda z: torch.view_as_real(torch.tensor(z[:4])).flatten()  # noqa: E731
        into = torch.stack([real((np.linalg.matrix_power(Ad, T - 1 - t) @ Bd)[:, 0]) for t in range(T)])
        assert_close(made.back[i, :, T:], into, dtype=torch.float32)
        x = torch.randn(8, dtype=torch.float64)
        state = (x.view(4, 2).numpy() @ [1, 1j])[:, None]
        moved = power @ np.concatenate([state, state.conj()])
        assert_close(x @ made.whole[i].double(), real(moved[:, 0]), dtype=torch.float32)
        seen = torch.tensor([(read @ np.linalg.matrix_power(Ad, t) @ np.concatenate([state, state.conj()])).real.item()
                             for t in range(T)])  # fmt: skip
        assert_close(made.ahead[i, :, T:].double() @ x, seen, dtype=torch.float32)


def _scan(given: list[Tensor], x: Tensor, h0: Tensor | None = None, delay: bool = False) -> tuple[Tensor, Tensor]:
    source = DenseSource(s4.TABLES, given, "bilinear", half_dplr.dense_bank)
    return operation.dplr_scan(source, x, h0, None, delay, torch.float32, lambda name, make: None)


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("start", [False, True])
def test_a_pass_and_its_gradients_are_those_of_the_recurrence(delay: bool, start: bool) -> None:
    given = [p.requires_grad_() for p in _parameters(delay=delay)]
    l, s = 32, 2 * given[5].shape[1]
    x = torch.randn(2, l, 2, requires_grad=True)
    h0 = torch.randn(2, 2, s, requires_grad=True) if start else None
    y, end = _scan(given, x, h0, delay)
    bank = half_dplr.dense_bank(given, "bilinear", torch.complex)
    h, ys = torch.zeros(2, 2, s, dtype=torch.float64) if h0 is None else h0.double(), []
    for u in x.double().unbind(1):
        seen = h if delay else torch.einsum("dij,bdj->bdi", bank.A, h) + bank.B * u[..., None]
        ys.append((bank.C * seen).sum(-1) + (0 if bank.D is None else bank.D * u))
        h = torch.einsum("dij,bdj->bdi", bank.A, h) + bank.B * u[..., None]
    want = torch.stack(ys, 1), h
    assert_close([y, end], list(want), dtype=torch.float32)
    own_inputs = [x, *([] if h0 is None else [h0]), *given]
    g = [torch.randn_like(t) for t in want]
    slopes = torch.autograd.grad(want, own_inputs, g)
    for a, b in zip(torch.autograd.grad((y, end), own_inputs, [t.float() for t in g]), slopes, strict=True):
        assert_close(a, b, gradient=True)


def test_gradients_of_gradients() -> None:
    given, x = [p.requires_grad_() for p in _parameters()], torch.randn(2, 16, 2, requires_grad=True)

    def second(y: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(y.square().sum(), [x, *given], create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in first), [x, *given])

    K = _simulate(given, 16, False)[0]
    lag = torch.arange(16) - torch.arange(16)[:, None]
    toeplitz = torch.where(lag >= 0, K[:, lag.clamp(min=0)], 0)
    want = second(torch.einsum("bid,dij->bjd", x.double(), toeplitz))
    K = _simulate(given, 16, False)[0]  # whose graph is whole
    for a, b in zip(second(_scan(given, x)[0]), want, strict=True):
        assert_close(a, b, gradient=True)
    made = lambda: dplr_response._Made.apply(half_dplr.dense_bank, "bilinear", 16, False, *given)[0]  # noqa: E731
    slopes = torch.autograd.grad(made().square().sum(), given, create_graph=True)
    found = torch.autograd.grad(sum(t.square().sum() for t in slopes), given)
    slopes = torch.autograd.grad(K.square().sum(), given, create_graph=True)
    for a, b in zip(found, torch.autograd.grad(sum(t.square().sum() for t in slopes), given), strict=True):
        assert_close(a, b, gradient=True)


def test_layers_that_are_alike_share_one_kernel() -> None:
    layers = [S4(2, 6, n_ssm=2), S4(2, 6, n_ssm=2)]
    found = dplr_response.make_response([layer._source(layer.C, layer.D) for layer in layers], 20)
    for K, layer in zip(found, layers, strict=True):
        given = list(layer._source(layer.C, layer.D).parameters)
        want = _simulate(given, 20, False)[0]
        assert_close(K, want, dtype=torch.float32)
        for a, b in zip(torch.autograd.grad(K.sum(), given, retain_graph=True),
                        torch.autograd.grad(want.sum(), given), strict=True):  # fmt: skip
            assert_close(a, b, gradient=True)


def test_a_probe_tells_right_kernels_from_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    own_of = {rank: operation.example(torch.device("cpu"), rank, 2, 5) for rank in (1, 2)}
    for given in own_of.values():
        assert operation.agrees(own, half_dplr.dense_bank, "bilinear", given, 16)
    right = own.parameter_gradients
    monkeypatch.setattr(own, "parameter_gradients", lambda *given: [1.01 * t for t in right(*given)])
    assert not operation.agrees(own, half_dplr.dense_bank, "bilinear", own_of[1], 16)
