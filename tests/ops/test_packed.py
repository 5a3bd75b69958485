"""Documents packed in a row: every backend gives what each document gives alone, in values and in gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_cases import every_backend, multiplier
from packed_cases import linear_alone, marks, selective_alone
from selective_cases import ALL, draw
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan.operation import _Eager, _op
from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.ops.selective_scan.operation import _operator
from resolvent.scan import linear_scan, packed_starts, selective_scan, use

BOTH = [torch.float64, torch.complex128]
Case = tuple[Tensor, Tensor, Tensor]  # a, b, h0


def case(r: int, l: int, n: int, dtype: torch.dtype = torch.float64, constant: bool = False) -> Case:
    a, b = multiplier(*((1, n) if constant else (r, l, n)), dtype=dtype), torch.randn(r, l, n, dtype=dtype)
    h0 = torch.randn(r, n, dtype=dtype)
    return a.requires_grad_(), b.requires_grad_(), h0.requires_grad_()


def linear_pair(x: Case, start: Tensor, reverse: bool) -> None:
    """Packed and alone: states, and the gradients of a, b and h0 under one random upstream gradient."""
    found, want = linear_scan(*x, reverse, start), linear_alone(*x, start.expand(x[1].shape[:-1]), reverse)
    assert_close(found, want)
    g = torch.randn_like(want)
    got, true = (torch.autograd.grad(h, x, g, materialize_grads=True) for h in (found, want))
    for gradient, wanted in zip(got, true, strict=True):
        assert_close(gradient, wanted, gradient=True)


def selective_pair(x: Inputs, start: Tensor, reverse: bool) -> None:
    """The same with y, the last state, and the gradients of every input."""
    found = selective_scan(*x, reverse=reverse, start=start)
    want = selective_alone(x, start.expand(x.u.shape[:2]), reverse)
    assert_close(list(found), list(want))
    g = [torch.randn_like(t) for t in want]
    leaves = [t for t in x if t is not None]
    got, true = (torch.autograd.grad(out, leaves, g, materialize_grads=True) for out in (found, want))
    for gradient, wanted in zip(got, true, strict=True):
        assert_close(gradient, wanted, gradient=True)


# -- marks -------------------------------------------------------------------------------------------------------------


def test_starts_of_documents() -> None:
    assert packed_starts([2, 1, 3]).tolist() == [True, False, True, True, False, False]
    assert packed_starts(torch.tensor([2, 1], dtype=torch.int32), 5).tolist() == [True, False, True, True, False]
    assert packed_starts([2, 2], continued=True).tolist() == [False, False, True, False]
    assert packed_starts([1]).tolist() == [True]


@pytest.mark.parametrize(
    ("lengths", "total", "error", "words"),
    [
        ([2, 0, 1], None, ValueError, "1 at least, got 0"),
        ([2, 3], 4, ValueError, "row of 4 steps, got 5"),
        ([2.0, 3.0], None, TypeError, "whole numbers"),
        ([], 3, TypeError, "got nothing"),
        ([[1, 2]], 3, ValueError, r"shape \(s,\)"),
        ([[1, 2], [3]], 6, TypeError, "whole numbers, got list"),
        (None, 3, TypeError, "whole numbers, got NoneType"),
        ("35", 8, TypeError, "whole numbers, got str"),
        ([2, 3], 5.0, TypeError, "total as a whole number of steps, got 5.0 of type float"),
        ([2, 3], "5", TypeError, "total as a whole number of steps, got '5' of type str"),
    ],
    ids=["empty", "too long", "floats", "none", "rank", "ragged", "nothing", "text", "float total", "text total"],
)
def test_lengths_that_are_refused(lengths: Any, total: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        packed_starts(lengths, total)


def test_marks_that_are_refused() -> None:
    a, b, _ = case(2, 5, 3)
    x = draw(2, 5, 3, 2)
    for scan in (lambda start: linear_scan(a, b, start=start), lambda start: selective_scan(*x, start=start)):
        with pytest.raises(TypeError, match=r"bool tensor, got a tensor of torch\.int64"):
            scan(torch.zeros(5, dtype=torch.int64))
        with pytest.raises(TypeError, match="got list"):
            scan([True] * 5)
        with pytest.raises(ValueError, match=r"broadcasts to \(2, 5\)"):
            scan(torch.zeros(4, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"got \(1, 2, 5\)"):
            scan(torch.zeros(1, 2, 5, dtype=torch.bool))
        with pytest.raises(ValueError, match="start on cpu"):
            scan(torch.zeros(5, dtype=torch.bool, device="meta"))


# -- values and first gradients ----------------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", BOTH, ids=["real", "complex"])
def test_linear_documents(backend: str, dtype: torch.dtype, reverse: bool) -> None:
    """Rows with different marks, and a multiplier that does not change with time."""
    with use(backend):
        linear_pair(case(3, 37, 5, dtype), marks(3, 37), reverse)
        linear_pair(case(2, 9, 3, dtype, constant=True), marks(2, 9), reverse)


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
def test_selective_documents(backend: str, reverse: bool) -> None:
    """Longer than two chunks of the saved states; the marks of each row are its own."""
    with use(backend):
        selective_pair(draw(2, 71, 3, 2), marks(2, 71, often=0.1), reverse)
        selective_pair(draw(1, 5, 9, 1, extras=("h0",)), marks(1, 5), reverse)


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("kind", ["none", "all", "first", "last"])
def test_marks_at_the_edges(backend: str, kind: str, length: int, reverse: bool) -> None:
    start = torch.full((length,), kind == "all")
    if kind in ("first", "last"):
        start[0 if kind == "first" else -1] = True
    with use(backend):
        linear_pair(case(2, length, 3), start, reverse)
        selective_pair(draw(2, length, 2, 2), start, reverse)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), spare=st.integers(0, 5), reverse=st.booleans())
def test_any_lengths(lengths: list[int], spare: int, reverse: bool) -> None:
    torch.manual_seed(sum(lengths))
    start = packed_starts(lengths, sum(lengths) + spare, continued=spare % 2 == 0)
    linear_pair(case(1, len(start), 2), start, reverse)
    selective_pair(draw(1, len(start), 2, 2, extras=("D", "h0")), start, reverse)


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_mark_cuts_has_no_gradient(backend: str, reverse: bool) -> None:
    """Exactly none, even where the state before is huge."""
    a, b, h0 = case(2, 8, 3)
    start = packed_starts([3, 2, 3])
    with use(backend):
        h = linear_scan(a, b * 1e100, h0, reverse, start)
        ga, gh0 = torch.autograd.grad(h.sum(), (a, h0))
        end = torch.autograd.grad(selective_scan(*(x := draw(2, 8, 3, 2)), reverse=reverse, start=start)[0].sum(), x[7])
    cut = [2, 4] if reverse else [0, 3, 5]
    assert torch.all(ga[:, cut] == 0)
    assert torch.all(ga[:, 1] != 0)
    assert bool((gh0 == 0).all()) == (not reverse)
    assert bool((end[0] == 0).all()) == (not reverse)


@every_backend
def test_no_marks_change_nothing(backend: str) -> None:
    """The same bits as without `start`."""
    a, b, h0 = case(2, 40, 5)
    x = draw(2, 40, 3, 4)
    none = torch.zeros(1, dtype=torch.bool)
    with use(backend):
        assert torch.equal(linear_scan(a, b, h0, start=none), linear_scan(a, b, h0))
        for got, want in zip(selective_scan(*x, start=none), selective_scan(*x), strict=True):
            assert torch.equal(got, want)


def test_a_row_in_pieces() -> None:
    """The state is carried from piece to piece; a document that begins with a piece forgets it."""
    (a, b, h0), start = case(1, 20, 3), packed_starts([6, 4, 10], continued=True)
    whole = linear_scan(a, b, h0, start=start)
    state, out = h0, []
    for t in (0, 6, 13):
        part = slice(t, {0: 6, 6: 13, 13: 20}[t])
        out.append(linear_scan(a[:, part], b[:, part], state, start=start[part]))
        state = out[-1][:, -1]
    assert_close(torch.cat(out, 1), whole)


@pytest.mark.parametrize("reverse", [False, True])
def test_mixed_and_half_dtypes(reverse: bool) -> None:
    a, b, h0 = (t.detach() for t in case(2, 11, 4))
    start = marks(2, 11)
    want = linear_alone(a, b, h0, start, reverse)
    half = linear_scan(*(t.bfloat16() for t in (a, b, h0)), reverse, start)
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), want, dtype=torch.bfloat16)
    mixed = linear_scan(a, torch.complex(b, -b), torch.complex(h0, -h0), reverse, start)
    assert_close(mixed, torch.complex(want, -want))
    x = Inputs(*(t.detach() for t in draw(2, 35, 3, 2, dtype=torch.bfloat16)))
    y, h = selective_scan(*x, reverse=reverse, start=(start := marks(2, 35)))
    wide = selective_alone(Inputs(*(t.double() for t in x)), start, reverse)
    assert_close([y.double(), h.double()], list(wide), dtype=torch.bfloat16)


def test_nothing_to_scan() -> None:
    start = torch.zeros(0, dtype=torch.bool)
    assert linear_scan(torch.ones(3), torch.ones(2, 0, 3), start=start).shape == (2, 0, 3)
    x = draw(2, 0, 3, 2)
    y, h = selective_scan(*x, start=start, reverse=True)
    assert y.shape == (2, 0, 3)
    assert torch.equal(h, x.h0)


# -- further derivatives, transforms, compiled code --------------------------------------------------------------------


def selective(start: Tensor, reverse: bool) -> Callable[..., Any]:
    return lambda *x: selective_scan(*x, reverse=reverse, start=start)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", BOTH, ids=["real", "complex"])
def test_linear_derivatives_of_every_order(dtype: torch.dtype, reverse: bool) -> None:
    x, start = case(2, 5, 2, dtype), marks(2, 5)

    def scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        return linear_scan(a, b, h0, reverse, start)

    assert torch.autograd.gradcheck(scan, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(scan, x)


@pytest.mark.parametrize("by", ["eager", "operator"])
@pytest.mark.parametrize("constant", [False, True])
def test_marks_that_travel_with_the_scan(by: str, constant: bool) -> None:
    """The route of a GPU, on which kernels read the marks themselves: a rule for each derivative, here on a CPU."""
    a, b, h0 = case(2, 5, 2, torch.complex128)
    a = multiplier(1, 1, 2, dtype=torch.complex128).requires_grad_() if constant else a
    reset = marks(1, 5)
    run: Callable[..., Tensor] = _Eager.apply if by == "eager" else _op

    def scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
        return run(a, b, h0, False, reset)

    linear = linear_alone(a, b, h0, reset.expand(2, 5), False)
    assert_close(scan(a, b, h0), linear)
    grads = torch.autograd.grad
    got, want = (grads(h.abs().sum(), (a, b, h0), materialize_grads=True) for h in (scan(a, b, h0), linear))
    assert_close(list(got), list(want), gradient=True)
    only_b = grads(scan(a.detach(), b, h0.detach()).abs().sum(), b)[0]
    assert_close(only_b, want[1], gradient=True)
    assert torch.autograd.gradcheck(scan, (a, b, h0), check_forward_ad=by == "eager")
    assert torch.autograd.gradgradcheck(scan, (a, b, h0))


@pytest.mark.parametrize("reverse", [False, True])
def test_selective_derivatives_of_every_order(reverse: bool) -> None:
    x, start = tuple(draw(2, 4, 2, 2)), marks(2, 4)
    assert torch.autograd.gradcheck(selective(start, reverse), x, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(selective(start, reverse), x, fast_mode=True)


def test_mapped_over_rows_and_over_marks() -> None:
    a, b, h0 = (t.detach() for t in case(3, 6, 2))
    x = Inputs(*(t.detach() for t in draw(3, 6, 2, 2)))
    start = marks(3, 6)
    each = torch.func.vmap(lambda a, b, h0, start: linear_scan(a, b, h0, start=start))
    assert_close(each(a, b, h0, start), linear_scan(a, b, h0, start=start))
    shared = torch.func.vmap(lambda start: linear_scan(a[0], b[0], start=start))(start)
    assert_close(shared[2], linear_scan(a[0], b[0], start=start[2]))
    rows = [t[:, None] if t.dim() == 3 else t for t in x]
    dims = (0, 0, None, 0, 0, None, 0, 0, 0)
    y, h = torch.func.vmap(lambda *x: selective_scan(*x[:-1], start=x[-1]), dims)(*rows, start)
    want = selective_scan(*x, start=start)
    assert_close([y[:, 0], h[:, 0]], list(want))
    several = torch.func.vmap(lambda A, start: selective_scan(x.u, x.dt, A, *x[3:], start=start)[0])
    both = several(torch.stack((x.A, 2 * x.A)), start[:2])
    assert_close(both[1], selective_scan(x.u, x.dt, 2 * x.A, *x[3:], start=start[1])[0])


def test_functional_gradients() -> None:
    a, b, _ = (t.detach() for t in case(2, 6, 2))
    start = marks(6)

    def energy(a: Tensor) -> Tensor:
        return linear_scan(a, b, start=start).square().sum()

    want = torch.autograd.grad(linear_alone(a.requires_grad_(), b, None, start.expand(2, 6), False).square().sum(), a)
    assert_close(torch.func.grad(energy)(a.detach()), want[0], gradient=True)


def test_compiled_linear() -> None:
    a, b, h0 = case(2, 7, 3)
    start = marks(2, 7)
    compiled = torch.compile(linear_scan, fullgraph=True, backend="aot_eager")
    got, want = (f(a, b, h0, True, start) for f in (compiled, linear_scan))
    assert_close(got, want)
    found, true = (torch.autograd.grad(h.square().sum(), (a, b, h0)) for h in (got, want))
    assert_close(list(found), list(true), gradient=True)


def test_compiled_selective() -> None:
    x, start = draw(2, 7, 3, 2), marks(2, 7)
    compiled = torch.compile(selective(start, True), fullgraph=True, backend="aot_eager")
    got, want = (f(*x) for f in (compiled, selective(start, True)))
    assert_close(list(got), list(want))
    found, true = (torch.autograd.grad(y.square().sum() + h.sum(), x) for y, h in (got, want))
    assert_close(list(found), list(true), gradient=True)


@pytest.mark.parametrize("extras", [ALL, ()], ids=["all", "bare"])
def test_operators_keep_their_promises(extras: tuple[str, ...]) -> None:
    reset = marks(2, 4)
    torch.library.opcheck(_operator, (*draw(2, 4, 2, 2, extras=extras), False, True, reset))
    torch.library.opcheck(_op, (*case(2, 4, 2), False, reset))
