"""Operations as compilers and exports meet them: registered operators, and the same in torch's own real arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from helpers import assert_close
from resolvent import layers
from resolvent.conformance.properties.tracing import Outputs
from resolvent.layers.freezing import constant_tables
from resolvent.ops import plain
from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked import traced
from resolvent.ops.blocked.tables import DiagonalBank, diagonal_blocks, diagonal_tables, table_gradients
from resolvent.ops.dense_scan.operation import _scan as dense_operator
from resolvent.ops.gated_scan.operation import _operator as gated_operator
from resolvent.ops.linear_scan.pairs import _scan as pair_operator
from resolvent.ops.linear_scan.pairs import pair_scan
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.plain import plain_operations
from resolvent.runtime.transforms import as_traced
from resolvent.ssm.discretise import _pair_expm1_over

F64 = torch.float64
LENGTHS = (1, 2, 3, 64, 97)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def slopes(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    weight = numbers(*y.shape, seed=9)
    return list(torch.autograd.grad((y * weight).sin().sum(), leaves, retain_graph=True, materialize_grads=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("l", LENGTHS)
def test_doubled_strides_are_the_scan_step_by_step(l: int, reverse: bool) -> None:
    leaves = [t.requires_grad_() for t in (0.9 * torch.tanh(numbers(2, l, 3)), numbers(2, l, 3, seed=1), numbers(2, 3))]
    got, want = plain.varying_scan(*leaves, reverse), reference_scan(*leaves, reverse)
    assert_close([got, *slopes(got, leaves)], [want, *slopes(want, leaves)])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("l", LENGTHS)
def test_pairs_are_the_complex_scan(l: int, p: int, reverse: bool) -> None:
    lam = (0.6 * torch.tanh(numbers(p, 2))).requires_grad_()
    v, h0 = numbers(2, l, 2 * p, seed=1).requires_grad_(), numbers(2, 2 * p, seed=2).requires_grad_()
    leaves = [lam, v, h0]
    form = lambda t: torch.view_as_complex(t.unflatten(-1, (-1, 2)))  # noqa: E731
    want = torch.view_as_real(reference_scan(torch.view_as_complex(lam)[None], form(v), form(h0), reverse)).flatten(-2)
    for run in (plain.pair_scan, pair_operator, pair_scan):
        got = run(lam, v, h0, reverse)
        assert_close([got, *slopes(got, leaves)], [want, *slopes(want, leaves)])


@pytest.mark.parametrize("l", LENGTHS)
def test_a_dense_scan_is_the_loop(l: int) -> None:
    A, v, x0 = 0.4 * numbers(3, 3), numbers(2, l, 3, seed=1), numbers(2, 3, seed=2)
    leaves = [t.requires_grad_() for t in (A, v, x0)]
    x, every = x0, []
    for t in range(l):
        x = x @ A.mT + v[:, t]
        every.append(x)
    want = torch.stack(every, 1)
    with as_traced(), plain_operations():
        own = [dense_operator(*leaves), plain.dense_scan(A.mT, v + plain.first_step(x0 @ A.mT, v))]
    for got in own:
        assert_close([got, *slopes(got, leaves)], [want, *slopes(want, leaves)])


@pytest.mark.parametrize("kind", ["complex", "real"])
@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize("delay", [False, True])
def test_the_gradients_of_tables_are_those_of_autograd(kind: str, gained: bool, delay: bool) -> None:
    def drawn(seed: int) -> Tensor:
        t = torch.tanh(numbers(2, 3, 2, seed=seed)) * 0.6
        return (torch.view_as_complex(t) if kind == "complex" else t[..., 0]).requires_grad_()

    lam, weight, gain, now = drawn(1), drawn(2), drawn(3) if gained else None, numbers(2, 1).requires_grad_()
    made = diagonal_tables(DiagonalBank(lam, weight, gain=gain), now, 11, delay)
    g = [torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(5)) for t in made]
    leaves = [t for t in (lam, weight, now, gain) if t is not None]
    want = torch.autograd.grad(made, leaves, g)
    got = table_gradients(DiagonalBank(lam.detach(), weight.detach(), gain=gain), made[3].detach(), g, delay)
    assert_close([t for t in got if t is not None], list(want))


@pytest.mark.parametrize("l", [1, 63, 64, 65, 131])
def test_a_traced_pass_is_the_eager_one(l: int) -> None:
    lam = torch.view_as_complex(0.7 * torch.tanh(numbers(3, 2, 2)))
    weight, u, h0 = torch.view_as_complex(numbers(3, 2, 2, seed=1)), numbers(2, l, 3, seed=2), numbers(2, 3, 4, seed=3)
    lengths = torch.tensor([l, (l + 1) // 2])
    leaves = [t.requires_grad_() for t in (lam, weight, u, h0)]
    want = blocked.run(diagonal_blocks(DiagonalBank(lam, weight), 64, F64), u, h0, lengths)
    with as_traced():
        own = traced.diagonal_blocks(DiagonalBank(lam, weight), 64, F64)
        got = traced.run(own, u, h0, lengths)
        with plain_operations():
            plainly = traced.run(own, u, h0, lengths)
    for found in (got, plainly):
        for y, true in zip(found, want, strict=True):
            assert_close([y, *slopes(y, leaves)], [true, *slopes(true, leaves)])


SAMPLES: dict[str, tuple[object, Callable[[], tuple[object, ...]]]] = {
    "expm1_over": (_pair_expm1_over, lambda: (numbers(3, 2).requires_grad_(),)),
    "pair_scan": (pair_operator, lambda: (0.3 * numbers(2, 2), numbers(2, 5, 4).requires_grad_(), None, False)),
    "gated_scan": (
        gated_operator,
        lambda: (*(numbers(2, 5, 3, seed=i) for i in range(3)), -numbers(3).abs(), None, None, False),
    ),
    "dense_scan": (dense_operator, lambda: (0.3 * numbers(3, 3), numbers(2, 5, 3).requires_grad_(), numbers(2, 3))),
    "blocked_pass": (
        traced._pass,
        lambda: (
            numbers(2, 9, 3).requires_grad_(),
            numbers(2, 3, 2),
            numbers(3, 4, 4),
            numbers(3, 4, 2),
            numbers(3, 4, 2),
            0.1 * numbers(3, 2),
        ),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_an_operator_keeps_its_schema_and_its_shapes(name: str) -> None:
    operator, make = SAMPLES[name]
    torch.library.opcheck(operator, make(), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))  # type: ignore[arg-type]


def own_operators(program: torch.export.ExportedProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if str(n.target).startswith("resolvent.")]


def complex_nodes(program: torch.export.ExportedProgram) -> list[str]:
    values = [(n.name, n.meta.get("val")) for n in program.graph.nodes]
    return [name for name, v in values if isinstance(v, Tensor) and v.is_complex()]


MADE: dict[str, Callable[[], nn.Module]] = {
    "EMA": lambda: layers.EMA(3, 4),
    "S4D": lambda: layers.S4D(3, 4),
    "S4": lambda: layers.S4(3, 4),
    "DSS": lambda: layers.DSS(3, 2),
    "S5": lambda: layers.S5(3, 4),
    "LRU": lambda: layers.LRU(3, 4),
    "L2RU": lambda: layers.L2RU(3, 4),
    "L2RU, complete": lambda: layers.L2RU(3, form="complete"),
    "S6": lambda: layers.S6(3, 4),
    "RGLRU": lambda: layers.RGLRU(3),
}
SOME = ["EMA", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MADE)[1:])]


@pytest.mark.parametrize("name", SOME)
def test_an_export_in_torchs_own_real_operations(name: str) -> None:
    torch.manual_seed(0)
    model, x = Outputs(MADE[name]()).eval(), torch.randn(2, 100, 3)
    sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=512)}
    with constant_tables(model, x), plain_operations():
        program = export(model, (x,), dynamic_shapes=(sizes,))
    program.graph.eliminate_dead_code()
    assert not own_operators(program)
    assert not complex_nodes(program)
    for batch, length in ((2, 100), (3, 2), (1, 64), (5, 300)):
        x = torch.randn(batch, length, 3)
        with torch.no_grad():
            assert_close(program.module()(x), model(x))
