"""The blocked pass against `System.simulate`, for diagonal and dense banks with every option of the tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_close
from resolvent.ops.blocked import carry
from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked.tables import (
    DenseBank,
    DiagonalBank,
    dense_blocks,
    diagonal_blocks,
    geometric,
    inside,
    narrow,
)
from resolvent.ops.pairs import reals
from resolvent.ssm.system import Dense, Diagonal, System

F64 = torch.float64


def spectrum(d: int, n: int, kind: str) -> Tensor:
    radius = 0.3 + 0.69 * torch.rand(d, n, dtype=F64)
    return radius if kind == "real" else torch.polar(radius, 6.3 * torch.rand(d, n, dtype=F64))


def like(lam: Tensor) -> Tensor:
    return torch.randn(lam.shape, dtype=lam.dtype)


def by_steps(system: System, u: Tensor, x0: Tensor) -> tuple[Tensor, Tensor]:
    """Re(y) (b, l, d) and the state (b, d, n) of a bank (d,) by the slow truth."""
    y, x = system.simulate(u.transpose(1, 2)[..., None].to(x0.dtype), x0)  # (b, d, l, 1)
    return (y.real if y.is_complex() else y)[..., 0].transpose(1, 2), x


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 200),
    T=st.integers(1, 70),
    kind=st.sampled_from(["real", "complex"]),
    delay=st.booleans(),
    gain=st.booleans(),
)
def test_diagonal_bank_equals_simulation(length: int, T: int, kind: str, delay: bool, gain: bool) -> None:
    lam = spectrum(2, 3, kind)
    bank = DiagonalBank(lam, like(lam), torch.randn(2, dtype=F64), like(lam) if gain else None)
    blocks = diagonal_blocks(bank, T, F64, delay)
    u, h0 = torch.randn(3, length, 2, dtype=F64), torch.randn(3, 2, 3, dtype=lam.dtype)
    y, end = blocked.run(blocks, u, reals(h0))
    B = (torch.ones_like(lam) if bank.gain is None else bank.gain)[..., None]
    D = torch.zeros(2, 1, 1, dtype=F64) if delay else bank.D[:, None, None]
    C = bank.weight[:, None]
    want, x = by_steps(System(Diagonal(lam), B, C, D, 1.0, delay=delay), u, h0)
    assert_close(y, want)
    assert_close(end, reals(x))


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 31, 64, 97])
@pytest.mark.parametrize("few", [1, 3, 8])
def test_states_in_pairs_are_those_one_by_one(m: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "FEW", few)
    P = torch.randn(2, 4, 4, dtype=F64)
    leaves = 0.97 * P / torch.linalg.matrix_norm(P, 2)[:, None, None], torch.randn(2, 3, m, 4), torch.randn(2, 3, 4)
    leaves = tuple(t.double().requires_grad_() for t in leaves)
    found = []
    for along in (carry._combine_pairs, carry._one_by_one):
        h = along(*leaves)
        found.append([h, *torch.autograd.grad(h.pow(3).sum(), leaves)])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize(("length", "T"), [(1, 1), (1, 8), (7, 8), (8, 8), (50, 8), (48, 12), (50, 13)])
def test_dense_bank_equals_simulation(length: int, T: int, delay: bool) -> None:
    A = torch.randn(2, 4, 4, dtype=F64)
    A = 0.97 * A / torch.linalg.matrix_norm(A, 2)[:, None, None]
    bank = DenseBank(A, torch.randn(2, 4, dtype=F64), torch.randn(2, 4, dtype=F64), torch.randn(2, dtype=F64))
    u, h0 = torch.randn(3, length, 2, dtype=F64), torch.randn(3, 2, 4, dtype=F64)
    blocks = dense_blocks(bank, T, F64, delay)
    D = torch.zeros(2, 1, 1, dtype=F64) if delay else bank.D[:, None, None]
    system = System(Dense(A), bank.B[..., None], bank.C[:, None], D, 1.0, delay=delay)
    y, end = blocked.run(blocks, u, h0)
    want, x = by_steps(system, u, h0)
    assert_close(y, want)
    assert_close(end, x)
    lengths = torch.tensor([1, length, (length + 1) // 2])
    _, ends = blocked.run(blocks, u, h0, lengths)
    for i, n in enumerate(lengths.tolist()):
        assert_close(ends[i], by_steps(system, u[i : i + 1, :n], h0[i : i + 1])[1][0])


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 97, 784, 1009, 8192, 65536])
def test_block_length_fits(length: int) -> None:
    T = blocked.block_length(length)
    assert T <= 80
    assert min(length, 48) <= T
    if length in (784, 1009, 8192, 65536):
        assert {784: 56, 1009: 64, 8192: 64, 65536: 64}[length] == T


def test_few_tables_serve_all_short_sequences() -> None:
    assert {blocked.block_length(l) for l in range(1, 65)} == {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize("count", [1, 7, 8, 9, 56, 64, 65])
def test_geometric_powers(count: int) -> None:
    lam = spectrum(2, 3, "complex")
    powers, last = geometric(lam, count, F64)
    assert_close(powers, lam[:, None] ** torch.arange(1, count + 1)[:, None])
    assert_close(last, lam**count)


def test_single_precision_tables_are_rounded_once() -> None:
    """lam^64 of an angle of 130 radians: right to float32's own rounding, where float32 arithmetic is not."""
    z = torch.complex(torch.tensor([[-1e-3]], dtype=F64), torch.tensor([[130.3265]], dtype=F64))
    exact = torch.exp(64 * z)
    _, last = geometric(torch.exp(z), 64, torch.float32)
    assert float((last - exact).abs()) < 1e-7
    assert float((torch.exp(z.to(torch.complex64)) ** 64 - exact).abs()) > 1e-5


def test_a_long_slow_mode_in_single_precision() -> None:
    lam = torch.polar(torch.full((1, 4), 0.9995, dtype=F64), torch.tensor([[0.0, 0.01, 0.5, 2.0]], dtype=F64))
    bank = DiagonalBank(lam, torch.ones_like(lam))
    u = torch.randn(1, 8192, 1, dtype=torch.float32)
    h0 = torch.zeros(1, 1, 8)
    exact, _ = blocked.run(diagonal_blocks(bank, 64, F64), u.double(), h0.double())
    y, _ = blocked.run(diagonal_blocks(bank, 64, torch.float32), u, h0)
    assert_close(y, exact, dtype=torch.float32)


def test_inside_holds_the_modulus_and_leaves_the_rest() -> None:
    lam = torch.tensor([0.0, 0.3 + 0.4j, 1.0, -1.0, 3.0 + 4.0j], dtype=torch.complex128)
    held = narrow(inside(lam, torch.float32), torch.float32)
    assert torch.equal(held[:2], lam[:2].to(torch.complex64))
    assert bool((held.abs() < 1).all())
    assert float((held[4] - (0.6 + 0.8j)).abs()) < 1e-6


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize(("length", "T"), [(12, 4), (11, 4), (3, 4)])
def test_fused_gradients_equal_those_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch, length: int, T: int, kind: str, chunk: int
) -> None:
    """The backward pass without a graph, for y and for the last state, with one channel at a time and with all."""
    monkeypatch.setattr(blocked, "CHUNK", chunk)
    lam = spectrum(3, 2, kind)
    inputs = [
        lam,
        like(lam),
        torch.randn(3, dtype=F64),
        torch.randn(2, length, 3, dtype=F64),
        like(lam).repeat(2, 1, 1),
    ]
    inputs = [x.requires_grad_() for x in inputs]
    lam, weight, D, u, h0 = inputs
    ours = blocked.run(diagonal_blocks(DiagonalBank(lam, weight, D), T, F64), u, reals(h0))
    system = System(Diagonal(lam), torch.ones_like(lam)[..., None], weight[:, None], D[:, None, None], 1.0)
    y, x = by_steps(system, u, h0)
    g = [torch.randn_like(o) for o in ours]
    for outputs in ((0,), (1,), (0, 1)):
        want = _gradients([(y, reals(x))[i] for i in outputs], inputs, [g[i] for i in outputs])
        got = _gradients([ours[i] for i in outputs], inputs, [g[i] for i in outputs])
        assert_close(got, want, gradient=True)


def _gradients(outputs: list[Tensor], inputs: list[Tensor], g: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(outputs, inputs, g, retain_graph=True, materialize_grads=True))


def test_second_gradients_with_frozen_tables() -> None:
    """y is linear in u: the gradient's own gradient reaches the upstream gradient alone, and u is not kept for it."""
    lam = spectrum(2, 3, "complex")
    blocks = diagonal_blocks(DiagonalBank(lam, like(lam)), 4, F64)
    u, v = torch.randn(1, 12, 2, dtype=F64, requires_grad=True), torch.randn(1, 12, 2, dtype=F64, requires_grad=True)
    y, _ = blocked.run(blocks, u, u.new_zeros(1, 2, 6))
    (gu,) = torch.autograd.grad(y, u, v, create_graph=True)
    (plain,) = torch.autograd.grad(y, u, v, retain_graph=True)
    assert_close(gu, plain)
    w = torch.randn_like(u)
    (gv,) = torch.autograd.grad(gu, v, w)
    assert_close(gv, blocked.run(blocks, w, u.new_zeros(1, 2, 6))[0])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("T", [2, 7, 56])
def test_table_gradients_equal_those_of_the_graph(T: int, kind: str, dtype: torch.dtype) -> None:
    """The backward pass without a graph against autograd through the tables as they are written, in float64."""
    lam = spectrum(3, 5, kind)
    inputs = [lam.requires_grad_(), like(lam).requires_grad_(), torch.randn(3, dtype=F64, requires_grad=True)]
    tables = _all_tables(diagonal_blocks(DiagonalBank(*inputs), T, F64))
    g = [torch.randn_like(t) for t in tables]
    graph = torch.autograd.grad(tables, inputs, g, create_graph=True)  # second order is wanted: torch's operations
    found = _all_tables(diagonal_blocks(DiagonalBank(*inputs), T, dtype))
    got = torch.autograd.grad(found, inputs, [narrow(t, dtype) for t in g])
    assert_close(got, tuple(t.detach() for t in graph), dtype=dtype, gradient=True)


def _all_tables(blocks: blocked.Blocks) -> tuple[Tensor, ...]:
    assert isinstance(blocks.carry, blocked.DiagonalCarry)
    return blocks.toeplitz, blocks.M_in, blocks.M_out, blocks.carry.powers, blocks.carry.whole
