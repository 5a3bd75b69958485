"""Derivatives of the selective scan: every order, every transform, compiled, and what they cost in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from linear_cases import every_backend
from selective_cases import draw, fast, slow, with_gradients
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vmap

from helpers import assert_close
from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.scan import selective_scan, use

BATCHED = {  # which inputs a vmap maps over
    "all but A and D": (0, 0, None, 0, 0, None, 0, 0),
    "the input only": (0, *[None] * 7),
    "the parameters only": (None, None, 0, None, None, 0, None, None),
    "everything": (0,) * 8,
}


def _loss(*x: Tensor, reverse: bool = False) -> Tensor:
    y, h = selective_scan(*x, reverse=reverse)
    return (y**2).sum() + (h**3).sum()


def _slow_loss(*x: Tensor) -> Tensor:
    y, h = slow(Inputs(*x))
    return (y**2).sum() + (h**3).sum()


def _plain(x: Inputs) -> list[Tensor]:
    return [t.detach() for t in x]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_numerical_derivatives(reverse: bool) -> None:
    x = tuple(draw(1, 3, 2, 2))

    def scan(*args: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(*args, reverse=reverse)

    assert gradcheck(scan, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(scan, x)


@every_backend
def test_second_derivatives_equal_those_of_the_loop(backend: str) -> None:
    x = draw(2, 35, 3, 2)

    def second(scan: Any) -> tuple[Tensor, ...]:
        y, h = scan(x)
        first = torch.autograd.grad((y**2).sum() + h.sum(), x, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), x)

    want = second(slow)
    with use(backend):
        assert_close(second(fast), want, gradient=True)


def test_hessian_equals_that_of_the_loop() -> None:
    x = _plain(draw(2, 4, 2, 2))
    want = hessian(_slow_loss, argnums=2)(*x)
    assert_close(hessian(_loss, argnums=2)(*x), want, gradient=True)
    assert_close(jacrev(jacrev(_loss, argnums=2), argnums=2)(*x), want, gradient=True)


def test_tangents_equal_those_of_the_loop() -> None:
    x = tuple(_plain(draw(2, 34, 3, 2)))
    v = tuple(torch.randn_like(t) for t in x)
    assert_close(jvp(selective_scan, x, v), jvp(lambda *t: slow(Inputs(*t)), x, v))


@pytest.mark.parametrize("dims", BATCHED.values(), ids=BATCHED.keys())
def test_vmap_equals_a_loop_over_samples(dims: tuple[int | None, ...]) -> None:
    x = _plain(draw(2, 5, 3, 2))
    x = [t if dim is None else torch.stack((t, t / 2, t / 3)) for t, dim in zip(x, dims, strict=True)]

    def each(function: Any) -> Tensor:
        return torch.stack(
            [function(*(t if d is None else t[i] for t, d in zip(x, dims, strict=True))) for i in range(3)]
        )

    assert_close(vmap(lambda *t: selective_scan(*t)[0], dims)(*x), each(lambda *t: slow(Inputs(*t))[0]))
    assert_close(vmap(grad(_loss, argnums=1), dims)(*x), each(grad(_slow_loss, argnums=1)), gradient=True)
    total = grad(lambda A: vmap(_loss, dims)(*x[:2], A, *x[3:]).sum())(x[2])
    want = each(grad(_slow_loss, argnums=2))
    assert_close(total, want.sum(0) if dims[2] is None else want, gradient=True)


def test_batched_upstream_gradients() -> None:
    x = draw(2, 5, 3, 2)
    y, _ = fast(x)
    upstream = torch.randn(4, *y.shape, dtype=y.dtype)
    (got,) = torch.autograd.grad(y, x.dt, upstream, is_grads_batched=True, retain_graph=True)
    assert_close(got, torch.stack([torch.autograd.grad(y, x.dt, g, retain_graph=True)[0] for g in upstream]))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("extras", [("D", "z", "h0"), ()], ids=["all", "none"])
def test_compiles_whole_with_its_backward(backend: str, extras: tuple[str, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(selective_scan, fullgraph=True, backend=backend)
    for length in (5, 40):
        x = draw(2, length, 3, 2, extras=extras)
        want = with_gradients(slow, x)
        assert_close(with_gradients(lambda x, reverse: compiled(*x, reverse=reverse), x), want)


def test_the_operators_keep_their_contract() -> None:
    from resolvent.ops.selective_scan.operation import _operator

    x = draw(2, 33, 3, 2)
    torch.library.opcheck(_operator, (*x, False, True))
    torch.library.opcheck(_operator, (*x[:5], None, None, None, True, False))


@every_backend
def test_what_is_kept_for_backward_grows_slowly(backend: str) -> None:
    """Besides the inputs, one state per 32 steps: n / 32 of the bytes of u, however long the sequence."""

    def kept(length: int) -> float:
        x = draw(2, length, 8, 16, extras=())
        inputs = {t.data_ptr() for t in x if t is not None}
        sizes: list[int] = []

        def note(t: Tensor) -> Tensor:
            sizes.append(0 if t.data_ptr() in inputs else t.numel() * t.element_size())
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            fast(x)
        return sum(sizes) / (x.u.numel() * x.u.element_size())

    with use(backend):
        assert kept(320) == 16 / 32
        assert kept(640) == 16 / 32
