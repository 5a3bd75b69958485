"""The kernels that carry a filter's states over its blocks, interpreted on the CPU, against a loop in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401
from linear_cases import multiplier
from torch import Tensor

from helpers import assert_close, filters
from resolvent.layers import S4, S4D
from resolvent.lowering import responses
from resolvent.ops.blocked import carry_triton, chain
from resolvent.ops.filter.chained import Chained, make_chained

KINDS = ("real", "complex", "dense")


def loop(whole: Tensor, z: Tensor, reverse: bool) -> Tensor:
    """The states before each block, or those after it, one product after another."""
    dense = whole.to(torch.promote_types(whole.dtype, torch.float64))
    z = z.double()
    if whole.is_complex():
        z = torch.view_as_complex(z.unflatten(-1, (-1, 2)).contiguous())
    h, states = torch.zeros_like(z[:, :, 0]), []
    for z_k in z.flip(2).unbind(2) if reverse else z.unbind(2):
        states.append(h)
        h = (h @ dense if dense.dim() == 3 else h * dense[:, None]) + z_k
    found = torch.stack(states[::-1] if reverse else states, 2)
    return torch.view_as_real(found).flatten(-2) if found.is_complex() else found


def case(kind: str, d: int, b: int, m: int, n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    if kind == "dense":
        return torch.randn(d, n, n) * 0.7 / n**0.5, torch.randn(d, b, m, n)
    own = multiplier(d, n, dtype=torch.float32 if kind == "real" else torch.complex64)
    return own, torch.randn(d, b, m, n if kind == "real" else 2 * n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 3), (3, 2, 4, 8), (1, 2, 17, 13), (2, 1, 2, 33)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_against_the_loop(kind: str, shape: tuple[int, int, int, int], reverse: bool) -> None:
    whole, z = case(kind, *shape)
    want = loop(whole, z, reverse)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.full_like(z, float("nan"), dtype=dtype)
        carry_triton.chain(whole, z, out, reverse)
        assert_close(out, want.to(dtype))


@pytest.mark.parametrize("turned", [False, True])
def test_a_transposed_matrix_and_a_conjugate(turned: bool) -> None:
    """As the adjoint hands them over: views."""
    whole, z = case("complex" if turned else "dense", 2, 3, 4, 5)
    view = whole.conj() if turned else whole.mT
    out = torch.empty_like(z)
    carry_triton.chain(view, z.transpose(0, 1).contiguous().transpose(0, 1), out, True)
    assert_close(out, loop(view.resolve_conj(), z, True))


def test_a_gpu_would_choose_them() -> None:
    assert chain._probe_chain(carry_triton.chain, torch.device("cpu"), torch.float32)
    assert not chain._probe_chain(lambda whole, z, out, reverse: out.copy_(z), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("kind", [S4, S4D])
def test_a_filter_in_blocks(kind: type[S4] | type[S4D], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its product, adjoint and gradients with the kernels and without them."""
    torch.manual_seed(0)
    layer, T = kind(3, 6), 8
    ((k, *links),) = responses.linked_responses(filters(layer), 45, T)
    x, g = torch.randn(3, 2, 45), torch.randn(3, 2, 45)

    def found(own: Chained, x: Tensor, g: Tensor) -> list[Tensor]:
        return [own.forward(x), own.adjoint(g), own.adjoint(g, x.clone()), *own.taps(x, g)]

    wide = make_chained(k.double().detach(), tuple(widen(t) for t in links), torch.float64)
    want = found(wide, x.double(), g.double())
    monkeypatch.setattr(chain, "_torch_chain", carry_triton.chain)
    own = make_chained(k.float(), tuple(links), torch.float32).detached()
    for a, b in zip(found(own, x, g), want, strict=True):
        assert_close(a, b, gradient=True)


def widen(t: Tensor) -> Tensor:
    return t.detach().to(torch.promote_types(t.dtype, torch.float64))
