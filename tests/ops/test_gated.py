"""The gated scan against the recurrence written as a loop: values, gradients of every order and mode, its border."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from gated_cases import compare, draw, loop, marked, outcome
from linear_cases import without_numba
from torch import Tensor

from helpers import assert_close
from resolvent.ops.gated_scan import operation as gated
from resolvent.ops.gated_scan.inputs import Inputs
from resolvent.ops.gated_scan.operation import gated_scan
from resolvent.ops.gated_scan.reference import gated_reference
from resolvent.runtime import dispatch
from resolvent.scan import use

F64 = torch.float64


backends = pytest.mark.parametrize("backend", [pytest.param("numba", marks=without_numba), "torch"])


def scan(x: Inputs) -> Tensor:
    return gated_scan(*x[:5], **marked(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("start", ["none", "first", "any"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 3), (3, 33, 17), (1, 130, 5)], ids=str)
@backends
def test_against_a_loop(backend: str, shape: tuple[int, int, int], start: str, reverse: bool) -> None:
    x = draw(*shape, start=start, reverse=reverse)
    with use(backend):
        compare(scan, x)
        compare(scan, x._replace(h0=None))
        compare(scan, x, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_accumulate_in_float32(dtype: torch.dtype) -> None:
    x = draw(2, 300, 4, start="any")
    h = compare(scan, x, dtype)[0]
    assert h.dtype == dtype
    still = Inputs(*(torch.zeros(1, 4000, 1, dtype=dtype) for _ in range(2)), torch.ones(1, 4000, 1, dtype=dtype),
                   torch.tensor([-1e-3]))  # fmt: skip
    wide = still._replace(p=still.p.double(), q=still.q.double(), x=still.x.double(), rate=still.rate.double())
    assert_close(scan(still)[:, -1], scan(wide)[:, -1], dtype=torch.bfloat16)  # a sum in bfloat16 stops far below


def test_mixed_dtypes() -> None:
    x = draw(2, 9, 3, dtype=torch.float32)
    mixed = x._replace(p=x.p.double(), h0=x.h0.bfloat16() if x.h0 is not None else None)
    found = outcome(scan, mixed, torch.randn(2, 9, 3))
    assert [t.dtype for t in found] == [torch.float32, F64, *[torch.float32] * 3, torch.bfloat16]
    wide = Inputs(*(t.double() for t in mixed[:5] if isinstance(t, Tensor)))
    assert_close(found[0], loop(wide))


@backends
@pytest.mark.parametrize("name", ["rate", "h0"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rate_or_state_narrower_than_the_rest(backend: str, name: str, dtype: torch.dtype) -> None:
    x = draw(2, 9, 3, dtype=torch.float32)
    narrow = x._replace(**{name: getattr(x, name).to(dtype)})
    wide, g = x._replace(**{name: getattr(narrow, name).float()}), torch.randn(2, 9, 3)
    with use(backend):
        found, true = outcome(scan, narrow, g), outcome(scan, wide, g)
    assert [t.dtype == dtype for t in found[1:]] == [field == name for field in Inputs._fields[:5]]
    assert all(torch.equal(f, t.to(f.dtype)) for f, t in zip(found, true, strict=True))


@backends
def test_multipliers_near_one_and_near_zero(backend: str) -> None:
    """No cancellation: with log a of -1e-12 the root is 1.4e-6, which 1 - a² in float64 itself has to four digits."""
    rate = torch.tensor([-2e-12, -2e-7, -1e-2, -60.0], dtype=F64)
    zero, one = torch.zeros(1, 1, 4, dtype=F64), torch.ones(1, 1, 4, dtype=F64)
    p = torch.randn(2, 40, 4, dtype=F64)
    with use(backend):
        h = gated_scan(zero, zero, one, rate)[0, 0]
        assert_close(h, 0.5 * torch.sqrt(-torch.expm1(rate)), tolerance=1e-15)
        small = gated_scan(zero.float(), zero.float(), one.float(), rate.float())[0, 0]
        assert ((small - h).abs() <= 1e-6 * h).all()
        compare(scan, Inputs(p, p.flip(0), p.flip(1), rate))
        compare(scan, Inputs(p, p.flip(0), p.flip(1), torch.zeros(4, dtype=F64)))


@without_numba
@pytest.mark.parametrize(("dtype", "units"), [(torch.float32, 4e-7), (F64, 8e-16)], ids=["float32", "float64"])
def test_no_cancellation_over_the_whole_range(dtype: torch.dtype, units: float) -> None:
    """a and sqrt(1 - a²) relative to themselves, log a from -1e-12 to -30, also around where expm1 changes its form."""
    spread = -torch.logspace(-12, 1.4771, 3000, dtype=F64)
    rate = 2 * torch.cat((spread, torch.linspace(-0.36, -0.33, 1001, dtype=F64))).to(dtype)
    none, one, true = torch.zeros(1, 1, 4001, dtype=dtype), torch.ones(1, 1, 4001, dtype=dtype), rate.double() / 2
    with use("numba"):
        root = 2 * gated_scan(none, none, one, rate).double()[0, 0]
        a = gated_scan(none, none, none, rate, one[:, 0]).double()[0, 0]
    assert ((root / torch.sqrt(-torch.expm1(2 * true)) - 1).abs() <= units).all()
    assert ((a / torch.exp(true) - 1).abs() <= units).all()


@without_numba
def test_the_bits_do_not_depend_on_the_threads() -> None:
    x, g = draw(3, 500, 300, start="any", dtype=torch.float32), torch.randn(3, 500, 300)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with use("numba"):
                found.append(outcome(scan, x, g))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, c) for other in found[1:] for a, c in zip(found[0], other, strict=True))


def test_huge_gates() -> None:
    p = torch.tensor([-1e4, -700.0, -30.0, 0.0, 30.0, 700.0, 1e4], dtype=F64)[None, :, None].expand(1, 7, 2)
    for gates in ((p, p.flip(1)), (p, p), (p.flip(1), p)):
        x = Inputs(*gates, torch.randn(1, 7, 2, dtype=F64), torch.tensor([-0.5, -9.0], dtype=F64))
        assert all(t.isfinite().all() for t in compare(scan, x))


def test_the_slope_of_the_root_is_bounded() -> None:
    """At p = -40 the slope of sqrt is 5e8; 1000 is used, in p and in rate."""
    p = torch.full((1, 1, 1), -40.0, dtype=F64, requires_grad=True)
    rate = torch.tensor([-1.0], dtype=F64, requires_grad=True)
    h = gated_scan(p, torch.zeros(1, 1, 1, dtype=F64), torch.ones(1, 1, 1, dtype=F64), rate)
    gp, gr = torch.autograd.grad(h.sum(), (p, rate))
    r = torch.sigmoid(p.detach()).squeeze()
    assert_close(gr.squeeze(), -0.5 * 2000 * r)
    assert_close(gp.squeeze(), 0.5 * 2000 * r * (1 - r))


def test_documents_packed_in_a_row_are_as_if_alone() -> None:
    lengths = (1, 5, 9, 2)
    x = draw(2, sum(lengths), 3, started=False)
    edges = torch.tensor([0, *lengths]).cumsum(0).tolist()
    start = torch.zeros(2, sum(lengths), dtype=torch.bool)
    start[:, edges[:-1]] = True
    whole = gated_scan(*x[:4], start=start)
    for a, b in pairwise(edges):
        alone = gated_scan(x.p[:, a:b], x.q[:, a:b], x.x[:, a:b], x.rate, first=torch.ones(2, dtype=torch.bool))
        assert torch.equal(whole[:, a:b], alone)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)], ids=str)
def test_empty(shape: tuple[int, int, int]) -> None:
    x = draw(*shape, start="first")
    found = outcome(scan, x, torch.zeros(shape, dtype=F64))
    assert found[0].shape == shape
    assert [t.shape for t in found[1:]] == [t.shape for t in x[:5] if isinstance(t, Tensor)]
    assert all(not t.any() for t in found[1:5])


def test_memory_with_holes() -> None:
    p = torch.randn(3, 2, 11, dtype=F64).permute(1, 2, 0)
    q, x = torch.randn(2, 22, 3, dtype=F64)[:, ::2], torch.randn(2, 11, 6, dtype=F64)[..., 1::2]
    h0 = torch.randn(2, 4, 3, dtype=F64)[:, 2]
    compare(scan, Inputs(p, q, x, -torch.rand(6, dtype=F64)[::2], h0, torch.tensor([True, False])))
    compare(scan, Inputs(p, q, x, torch.tensor([-0.3], dtype=F64).expand(3), h0))


def _gradable(x: Inputs) -> list[Tensor]:
    return [t.requires_grad_() for t in x[:5] if isinstance(t, Tensor)]


@pytest.mark.parametrize("reverse", [False, True])
def test_second_derivatives(reverse: bool) -> None:
    x = draw(1, 4, 2, start="any", reverse=reverse)
    assert torch.autograd.gradgradcheck(lambda *t: gated_scan(*t, x.start, reverse), _gradable(x))


def test_forward_mode_vmap_and_batched_gradients() -> None:
    x = draw(2, 5, 3, start="first")
    given = tuple(t for t in x[:5] if isinstance(t, Tensor))
    function: Any = lambda *t: gated_scan(*t, first=x.start)  # noqa: E731
    tangents = tuple(torch.randn_like(t) for t in given)
    moved = [t + 1e-6 * v for t, v in zip(given, tangents, strict=True)]
    back = [t - 1e-6 * v for t, v in zip(given, tangents, strict=True)]
    slope = (function(*moved) - function(*back)) / 2e-6
    tangent = torch.func.jvp(function, given, tangents)[1]
    assert_close(tangent, slope, tolerance=1e-8)  # a difference of values: half of their digits
    with torch.autograd.forward_ad.dual_level():
        dual = [torch.autograd.forward_ad.make_dual(t, v) for t, v in zip(given, tangents, strict=True)]
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(function(*dual)).tangent, tangent)
    mapped = torch.func.vmap(lambda p: gated_scan(p, *x[1:5], first=x.start))(torch.stack([x.p, x.q]))
    assert_close(mapped[1], gated_scan(x.q, *x[1:5], first=x.start))
    leaf = x.p.clone().requires_grad_()
    h, g = gated_scan(leaf, *x[1:5], first=x.start), torch.randn(3, 2, 5, 3, dtype=F64)
    (many,) = torch.autograd.grad(h, leaf, g, is_grads_batched=True, retain_graph=True)
    assert_close(many, torch.stack([torch.autograd.grad(h, leaf, one, retain_graph=True)[0] for one in g]))


def test_compiled() -> None:
    x = draw(2, 6, 3, start="first")
    compiled = torch.compile(gated_scan, fullgraph=True, backend="aot_eager")
    g = torch.randn(2, 6, 3, dtype=F64)
    for got, want in zip(outcome(lambda x: compiled(*x[:5], first=x.start), x, g), outcome(scan, x, g), strict=True):
        assert_close(got, want)


def test_the_torch_path_is_there_for_every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert "torch" in dispatch.available("gated_scan", gated.CANDIDATES, torch.device("cpu"), dtype)
    x = draw(2, 6, 3, start="any")
    with use("torch"):
        assert torch.equal(scan(x), gated_reference(*x))


@pytest.mark.parametrize(
    ("change", "why"), [({}, None), ({"p": F64}, "several dtypes"), ({"h0": F64}, "several dtypes")]
)
def test_what_kernels_do_not_take(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], why: str | None) -> None:
    said: list[str] = []
    monkeypatch.setattr(gated, "left_to_torch", lambda x, op, what: said.append(what))
    x = draw(2, 3, 2, dtype=torch.float32)
    x = x._replace(**{name: getattr(x, name).to(dtype) for name, dtype in change.items()})
    assert gated._unfit(x) == (why is not None)
    assert len(said) == (why is not None)
    assert why is None or why in said[0]


WRONG = {
    "p of another shape": ({"p": torch.zeros(2, 4, 3)}, ValueError, "expected p of shape"),
    "rate of another shape": ({"rate": torch.zeros(4)}, ValueError, "expected rate of shape"),
    "h0 of another shape": ({"h0": torch.zeros(3)}, ValueError, "expected h0 of shape"),
    "x without a batch": ({"x": torch.zeros(5, 3)}, ValueError, "expected x of shape"),
    "x of integers": ({"x": torch.zeros(2, 5, 3, dtype=torch.int64)}, TypeError, "real floating x"),
    "q no tensor": ({"q": 0.5}, TypeError, "a tensor for q"),
    "start of integers": ({"start": torch.zeros(2, 5, dtype=torch.int64)}, TypeError, "tensor of bool"),
    "start of another shape": ({"start": torch.zeros(5, dtype=torch.bool)}, ValueError, r"start\.expand\(2, 5\)"),
    "rate elsewhere": ({"rate": torch.zeros(3, device="meta")}, ValueError, "expected rate on cpu"),
    "start elsewhere": ({"start": torch.zeros(2, 5, dtype=torch.bool, device="meta")}, ValueError, "start on cpu"),
    "a flag for each row as start": (
        {"start": torch.zeros(2, dtype=torch.bool)},
        ValueError,
        "first steps alone as first",
    ),
    "first of another shape": ({"first": torch.zeros(5, dtype=torch.bool)}, ValueError, "one flag for each row"),
    "start and first": (
        {"start": torch.zeros(2, 5, dtype=torch.bool), "first": torch.zeros(2, dtype=torch.bool)},
        ValueError,
        "got both",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_inputs(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given = draw(2, 5, 3)._asdict() | change
    with pytest.raises(error, match=message):
        gated_scan(**given)
