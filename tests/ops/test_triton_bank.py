"""The kernels of `bank_scan`, interpreted on the CPU, against the same pass in torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from resolvent.layers import dss, ema, s4d
from resolvent.ops.bank_scan import dense, operation, triton
from resolvent.ops.bank_scan.operation import Plan, bank_scan, run_by_torch
from resolvent.ops.modes.dense import form_blocks
from resolvent.ops.modes.operation import Modes, Source

ALL = [s4d.MODES, dss.MODES, ema.MODES]
HERE = torch.device("cpu")


def _parameters(modes: Modes, delay: bool) -> list[Tensor]:
    own = list(modes.example())
    return own[:-1] if delay else own


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
@pytest.mark.parametrize(
    ("T", "l", "start", "lengths", "delay"),
    [
        (16, 16, True, None, False),
        (16, 1, False, None, False),
        (16, 33, False, None, True),
        (16, 320, True, None, False),  # more blocks than the carry reads at a time
        (32, 50, False, (50, 7, 1), False),
        (16, 300, False, (300, 290, 16), False),
    ],
)
def test_values_and_gradients_are_those_of_float64(
    modes: Modes, T: int, l: int, start: bool, lengths: tuple[int, ...] | None, delay: bool
) -> None:
    torch.manual_seed(0)
    parameters, b = _parameters(modes, delay), 3
    plan = Plan(modes, modes.fused[0], T, delay, torch.float32)
    x = torch.randn(b, 3, l).mT  # channels far apart
    tables = triton.make_tables(modes.kind, parameters, T, delay, torch.float32)
    s = tables.ahead.shape[2] - T
    h0 = torch.randn(b, 3, s) if start else None
    ends = None if lengths is None else torch.tensor(lengths)
    y, end, kept = triton.run(tables, x, h0, ends)
    gy, g_end = torch.randn_like(y), torch.randn_like(end)
    gx, g_h0, found = triton.gradients(tables, kept, gy, g_end, start=start)
    assert found is not None
    slopes = triton.parameter_gradients(modes.kind, parameters, found, T, delay)

    own = [t.double().requires_grad_() for t in (x, *([] if h0 is None else [h0]), *parameters)]
    want = run_by_torch(plan, own[0], None if h0 is None else own[1], ends, own[1 + start :])
    if ends is not None:
        gy = gy.masked_fill((torch.arange(l) >= ends[:, None])[..., None], 0)
    wanted = torch.autograd.grad(want, own, (gy.double(), g_end.double()))
    got = [y, end, gx, *([] if g_h0 is None else [g_h0]), *slopes]
    for i, (g, w) in enumerate(zip(got, (*want, *wanted), strict=True)):
        assert (g.double() - w).norm() <= 1e-5 * w.norm(), i


def test_without_parameters_and_states_only_the_input_has_a_gradient() -> None:
    modes, x = s4d.MODES, torch.randn(2, 40, 3)
    tables = triton.make_tables(modes.kind, list(modes.example()), 16, False, torch.float32)
    y, _, kept = triton.run(tables, x, None, None)
    kept = kept._replace(rows=None)
    gx, g_h0, found = triton.gradients(tables, kept, y, None, start=False)
    plan = Plan(modes, "zoh", 16, False, torch.float32)
    own = x.double().requires_grad_()
    want = run_by_torch(plan, own, None, None, [p.double() for p in modes.example()])[0]
    (wanted,) = torch.autograd.grad(want, own, y.double())
    assert (g_h0, found) == (None, None)
    assert (gx - wanted).norm() <= 1e-5 * wanted.norm()


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
def test_a_probe_tells_right_kernels_from_wrong_ones(modes: Modes, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in operation.CLOSE:
        assert operation.agrees(triton, modes, HERE, dtype)
    run = triton.run
    monkeypatch.setattr(triton, "run", lambda *given: (1.05 * run(*given)[0], *run(*given)[1:]))
    assert not operation.agrees(triton, modes, HERE, torch.float32)


@pytest.mark.parametrize("order", [1, 2])
def test_under_autograd(order: int) -> None:
    """Gradients of x, the first state and the parameters; those of second order by torch's operations."""
    torch.manual_seed(1)
    modes = s4d.MODES
    plan = Plan(modes, "zoh", 16, False, torch.float32)
    given = [torch.randn(2, 48, 3), torch.randn(2, 3, 10), *modes.example()]

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [t.to(dtype).requires_grad_() for t in given]
        if dtype == torch.float32:
            source = Source(modes, own[2:], "zoh")
            y, end = bank_scan(source, *own[:2], None, False, torch.float32, lambda key, make: None)
        else:
            y, end = run_by_torch(plan, own[0], own[1], None, own[2:])
        total = y.square().sum() + end.sum()
        found = torch.autograd.grad(total, own, create_graph=order == 2)
        return list(found if order == 1 else torch.autograd.grad(sum(t.square().sum() for t in found), own))

    for g, w in zip(slopes(torch.float32), slopes(torch.float64), strict=True):
        assert (g.double() - w).norm() <= 1e-4 * w.norm()


@pytest.mark.parametrize(
    ("l", "start", "lengths"), [(16, True, None), (1, False, None), (80, True, None), (50, False, (50, 7, 1))]
)
@pytest.mark.parametrize("order", [1, 2])
def test_a_dense_bank(l: int, start: bool, lengths: tuple[int, ...] | None, order: int) -> None:
    """Values and gradients under autograd, from A, B, C and D."""
    torch.manual_seed(0)
    b = 3
    given = [torch.randn(b, l, 3).double(), torch.randn(b, 3, 5).double(), *dense.example(HERE)]
    ends, weights = None if lengths is None else torch.tensor(lengths), torch.randn(b, 3, 5)

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [t.detach().to(dtype).requires_grad_() for t in given]
        x, h0 = own[0], own[1] if start else None
        tables = dense.make_tables(own[2:], 16)
        if dtype == torch.float32:
            y, end = dense.dense_bank_scan(form_blocks(tables), x, h0, ends, torch.float32)
        else:
            y, end = dense.run_by_torch(tables, x, h0, ends)
        total = y.square().sum() + (end * weights).sum()
        found = torch.autograd.grad(total, own, create_graph=order == 2, materialize_grads=True)
        if order == 2:
            total = sum(t.square().sum() for t in found)
            found = torch.autograd.grad(total, own, materialize_grads=True)
        return [y, end, *found]

    for i, (g, w) in enumerate(zip(slopes(torch.float32), slopes(torch.float64), strict=True)):
        assert (g.double() - w).norm() <= 5e-5 * w.norm(), i


def test_a_probe_of_the_dense_bank() -> None:
    for dtype in operation.CLOSE:
        assert dense.agrees(triton, HERE, dtype)
