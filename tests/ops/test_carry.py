"""States from block to block, and their gradients, against a loop of plain torch operations and its autograd."""

from __future__ import annotations

import pytest
import torch
from linear_cases import multiplier, without_numba
from torch import Tensor

from helpers import assert_close
from resolvent.ops.blocked.carry import carry, carry_backward
from resolvent.scan import use

KINDS = {
    "real32": (torch.float32, torch.float32),
    "real64": (torch.float64, torch.float64),
    "complex32": (torch.float32, torch.complex64),
    "complex64": (torch.float64, torch.complex128),
}
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 3), (3, 2, 4, 8), (2, 3, 16, 4), (2, 3, 17, 4), (2, 1, 300, 13), (2, 2, 1, 16)]
every_backend = pytest.mark.parametrize("backend", [pytest.param("numba", marks=without_numba), "torch"])
every_kind = pytest.mark.parametrize(("dtype", "kind"), KINDS.values(), ids=KINDS.keys())


def reals(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def loop(a: Tensor, z: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    h, states = h0, []
    for z_k in z.unbind(2):
        states.append(h)
        h = a[:, None] * h + z_k
    return torch.stack(states, 2), h


def case(d: int, b: int, m: int, n: int, kind: torch.dtype) -> list[Tensor]:
    a = multiplier(d, n, dtype=kind)
    return [t.requires_grad_() for t in (a, torch.randn(d, b, m, n, dtype=kind), torch.randn(d, b, n, dtype=kind))]


@every_backend
@every_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_loop(shape: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype, backend: str) -> None:
    inputs = case(*shape, kind)
    want = loop(*inputs)
    a, z, h0 = (t.detach() for t in inputs)
    before, end = torch.empty_like(reals(z)), torch.empty_like(reals(h0))
    g = [torch.randn_like(t) for t in want]
    g_a, g_z, g_h0 = torch.autograd.grad(want, inputs, g)
    g_state = reals(g[0]).clone()
    with use(backend):
        strided = reals(h0).transpose(0, 1).contiguous().transpose(0, 1)
        carry(a, reals(z), strided, before, end)
        found_h0, found_a = carry_backward(a, g_state, reals(g[1]), before)
        other = reals(g[0]).clone()
        without_states = carry_backward(a, other, reals(g[1]), None)
    assert_close((before, end), tuple(reals(t.detach()) for t in want), dtype=dtype)
    assert found_a is not None
    assert_close((g_state, found_h0, found_a), (reals(g_z), reals(g_h0), g_a), dtype=dtype, gradient=True)
    assert without_states[1] is None
    assert torch.equal(other, g_state)
    assert torch.equal(without_states[0], found_h0)


@without_numba
def test_bits_do_not_depend_on_threads() -> None:
    a, z, h0 = (t.detach() for t in case(3, 16, 40, 37, torch.complex64))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = [torch.empty_like(reals(z)), torch.empty_like(reals(h0))]
            carry(a, reals(z), reals(h0), out[0], out[1])
            g = reals(z).clone()
            found.append([*out, g, *carry_backward(a, g, reals(h0), out[0])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))  # type: ignore[arg-type]
