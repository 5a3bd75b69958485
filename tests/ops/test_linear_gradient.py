"""Gradients of linear_scan: against finite differences, against autograd through the loop, and by every transform."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from linear_cases import every_backend
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from helpers import assert_close
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.scan import linear_scan, use

Scan = Callable[..., Tensor]


def inputs(l: int, dtype: torch.dtype, time: int | None = None, rows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    a = 0.8 * torch.randn(rows, time or l, 3, dtype=dtype)
    b, h0 = torch.randn(rows, l, 3, dtype=dtype), torch.randn(rows, 3, dtype=dtype)
    return a.requires_grad_(), b.requires_grad_(), h0.requires_grad_()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("time", [None, 1], ids=["varying", "constant"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck(backend: str, dtype: torch.dtype, time: int | None, reverse: bool) -> None:
    def scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        return linear_scan(a, b, h0, reverse)

    with use(backend):
        assert gradcheck(scan, inputs(4, dtype, time), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
        assert gradgradcheck(scan, inputs(3, dtype, time, rows=1), check_fwd_over_rev=True, fast_mode=True)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("l", [1, 2, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize("time", [None, 1], ids=["varying", "constant"])
def test_equals_autograd_through_the_loop(backend: str, l: int, dtype: torch.dtype, time: int | None) -> None:
    if backend == "reference" and l > 65:
        pytest.skip("the loop against itself, slowly")
    a, b, h0 = inputs(l, dtype, time)
    a = (a / (1 + a.abs())).detach().requires_grad_()
    g = torch.randn_like(b)
    for reverse in (False, True):
        with use(backend):
            got = torch.autograd.grad(linear_scan(a, b, h0, reverse), (a, b, h0), g)
        assert_close(got, torch.autograd.grad(reference_scan(a, b, h0, reverse), (a, b, h0), g), gradient=True)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", [(7,), (3, 300, 7)], ids=["constant", "varying"])
def test_single_precision(backend: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.rand(shape, dtype=dtype) / 1.5
    b, g = torch.randn(3, 300, 7, dtype=dtype), torch.randn(3, 300, 7, dtype=dtype)
    double = torch.complex128 if dtype.is_complex else torch.float64

    def grads(scan: Scan, to: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [x.to(to).requires_grad_() for x in (a, b)]
        return torch.autograd.grad(scan(*leaves), leaves, g.to(to))

    with use(backend):
        got = grads(linear_scan, dtype)
    assert_close(tuple(x.to(double) for x in got), grads(reference_scan, double), dtype=torch.float32, gradient=True)


def test_a_long_single_precision_sum_over_time_keeps_its_digits() -> None:
    """∂a of a constant a sums l terms of one sign: a plain float32 sum of 200,000 would be off by 1e-3."""
    l = 200_000
    a = torch.tensor([0.5], requires_grad=True)
    (got,) = torch.autograd.grad(linear_scan(a, torch.ones(l, 1)).sum(), a)
    # sum_t d/da (1 - a^t)/(1 - a) -> l / (1 - a)^2 - ..., exactly by the loop in float64
    a64 = a.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(linear_scan(a64, torch.ones(l, 1, dtype=torch.float64)).sum(), a64)
    assert abs(want.item() / (l / (1 - 0.5) ** 2) - 1) < 1e-4  # the closed form's leading term
    assert_close(got.double(), want, dtype=torch.float32, gradient=True)


@every_backend
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_is_asked_for(backend: str, needed: tuple[int, ...]) -> None:
    tensors = [x.detach() for x in inputs(9, torch.float64)]
    wanted = [tensors[i].requires_grad_() for i in needed]
    g = torch.randn(2, 9, 3, dtype=torch.float64)
    with use(backend):
        got = torch.autograd.grad(linear_scan(*tensors), wanted, g)
    assert_close(got, torch.autograd.grad(reference_scan(*tensors), wanted, g))


def test_gradient_comes_back_for_half() -> None:
    a, b = (torch.rand(2, 50, 3, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    got = torch.autograd.grad(linear_scan(a, b).float().sum(), (a, b))
    leaves = [x.detach().double().requires_grad_() for x in (a, b)]
    want = torch.autograd.grad(reference_scan(*leaves).sum(), leaves)
    assert all(x.dtype == torch.bfloat16 for x in got)
    assert_close(tuple(x.double() for x in got), want, dtype=torch.bfloat16, gradient=True)


# -- torch.func --------------------------------------------------------------------------------------------------------


def energy(scan: Scan) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda a, b, h0: scan(a, b, h0).abs().square().sum()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_jvp_and_vjp(backend: str, dtype: torch.dtype) -> None:
    primals = tuple(x.detach() for x in inputs(11, dtype))
    tangents = tuple(torch.randn_like(x) for x in primals)
    with use(backend):
        got = jvp(linear_scan, primals, tangents)
        pulled = vjp(linear_scan, *primals)[1](got[0])
    assert_close(got, jvp(reference_scan, primals, tangents))
    assert_close(pulled, vjp(reference_scan, *primals)[1](got[0]))


@every_backend
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (None, 1, None), (2, None, None), (None, 0, 1), (None, None, 0)])
@pytest.mark.parametrize("time", [None, 1], ids=["varying", "constant"])
def test_vmap(backend: str, in_dims: tuple[int | None, ...], time: int | None) -> None:
    plain = [x.detach() for x in inputs(10, torch.float64, time)]
    mapped = [
        x if dim is None else torch.stack([x, 0.5 * x, 0.1 - x], dim) for x, dim in zip(plain, in_dims, strict=True)
    ]
    want = torch.stack(
        [
            reference_scan(*(m if dim is None else m.select(dim, i) for m, dim in zip(mapped, in_dims, strict=True)))
            for i in range(3)
        ]
    )
    with use(backend):
        assert_close(vmap(linear_scan, in_dims=in_dims)(*mapped), want)


@every_backend
def test_per_sample_gradients_and_nested_transforms(backend: str) -> None:
    a, b, h0 = (x.detach() for x in inputs(6, torch.float64, rows=4))
    for transform in (
        lambda scan: vmap(grad(energy(scan), argnums=(0, 1, 2)))(a, b, h0),
        lambda scan: vmap(grad(energy(scan), argnums=(0, 1)), in_dims=(None, 0, 0))(a[0, :1], b, h0),
        lambda scan: hessian(energy(scan))(a[:1, :1], b[:1], h0[:1]),
        lambda scan: jacfwd(grad(energy(scan)))(a[:1], b[:1], h0[:1]),
        lambda scan: jacrev(jacrev(lambda a: energy(scan)(a, b[0], h0[0])))(a[0]),
        lambda scan: grad(lambda a: grad(lambda x: grad(energy(scan))(x, b, h0).sum())(a).sum())(a),
    ):
        with use(backend):
            got = transform(linear_scan)
        assert_close(got, transform(reference_scan))


@every_backend
def test_batched_gradients_of_plain_autograd(backend: str) -> None:
    a, b, h0 = inputs(5, torch.float64)
    cotangents = torch.randn(3, 2, 5, 3, dtype=torch.float64)
    with use(backend):
        got = torch.autograd.grad(linear_scan(a, b, h0), (a, b, h0), cotangents, is_grads_batched=True)
    want = torch.autograd.grad(reference_scan(a, b, h0), (a, b, h0), cotangents, is_grads_batched=True)
    assert_close(got, want)


def test_inside_a_module_by_functional_call() -> None:
    class Filter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.rand(3, dtype=torch.float64))

        def forward(self, b: Tensor) -> Tensor:
            return linear_scan(self.a, b).square().mean()

    model, b = Filter(), torch.randn(4, 20, 3, dtype=torch.float64)
    params = {"a": model.a.detach()}
    per_sample = vmap(grad(lambda p, x: functional_call(model, p, (x,))), in_dims=(None, 0))(params, b)
    whole = grad(lambda p: functional_call(model, p, (b,)))(params)
    assert_close(per_sample["a"].mean(0), whole["a"])
