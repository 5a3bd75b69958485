"""The kernels that make a diagonal layer's tables and carry its states, interpreted on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from resolvent.layers import DSS, EMA, S4D, dss, ema, s4d
from resolvent.ops.blocked import carry, carry_triton
from resolvent.ops.modes import triton
from resolvent.ops.modes.operation import Modes
from resolvent.ops.modes.triton import maker
from resolvent.ssm import response
from resolvent.ssm.impulse import impulse

ALL = [s4d.MODES, dss.MODES, ema.MODES]


def _parameters(modes: Modes, delay: bool, case: str) -> list[Tensor]:
    """A layer's own first values, or the example that a GPU is probed with."""
    torch.manual_seed(0)
    if case == "example":
        own = list(modes.example())
    elif modes is s4d.MODES:
        own = list(S4D(3, 10)._source(*_read(S4D(3, 10))).parameters)
    elif modes is dss.MODES:
        own = list(DSS(3, 5, separate_dt=case == "two steps")._source().parameters)
    else:
        own = list(EMA(3, 5)._source().parameters)
    return [p.detach() for p in (own[:-1] if delay else own)]


def _read(layer: S4D) -> tuple[Tensor, Tensor]:
    assert layer.D is not None
    return layer.C, layer.D


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
@pytest.mark.parametrize(("T", "delay", "case"), [(2, False, "example"), (37, False, "two steps"), (16, True, "own")])
def test_tables_and_gradients_are_those_of_float64(modes: Modes, T: int, delay: bool, case: str) -> None:
    given, kernels, option = _parameters(modes, delay, case), maker(modes.kind), modes.fused[0]
    wide = [p.double() for p in given]
    want, got = modes.graph(wide, option, T, delay), kernels.tables(given, option, T, delay)
    for name, g, w in zip(("toeplitz", "M_in", "M_out", "powers", "whole"), got, want, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    weights: list[Tensor | None] = [torch.randn_like(w) for w in want]
    if T == 2:
        weights[3] = weights[4] = None  # nobody has asked for them
    leaves = [p.requires_grad_() for p in wide]
    asked = [(o, w) for o, w in zip(modes.graph(leaves, option, T, delay), weights, strict=True) if w is not None]
    slopes = torch.autograd.grad([o for o, _ in asked], leaves, [w for _, w in asked])
    narrow = [None if w is None else w.float() for w in weights]
    found = kernels.slopes(given, narrow, option, T, delay)
    for i, (g, w) in enumerate(zip(found, slopes, strict=True)):
        assert (g - w).norm() <= 2e-6 * w.norm(), f"{modes.kind}, parameter {i}"


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
@pytest.mark.parametrize(("length", "case"), [(1, "own"), (64, "example"), (301, "two steps")])
def test_a_response_and_its_gradients_are_those_of_float64(modes: Modes, length: int, case: str) -> None:
    given = _parameters(modes, False, case)
    wide = [p.double().requires_grad_() for p in given]
    want, got = impulse(modes.bank(wide, modes.fused[0]), length), triton.response(modes.kind, given, length)
    assert (got - want).norm() <= 1e-6 * want.norm()
    g = torch.randn_like(want)
    slopes = torch.autograd.grad(want, wide, g, materialize_grads=True)
    for i, (s, w) in enumerate(zip(triton.response_gradients(modes.kind, given, g.float()), slopes, strict=True)):
        assert (s - w).norm() <= 5e-6 * w.norm(), f"{modes.kind}, parameter {i}"
    assert response.agrees(triton, modes, torch.device("cpu"), length)


def test_the_probe_of_a_response_tells_right_kernels_from_wrong_ones() -> None:
    def late(*given: Any) -> Tensor:
        return triton.response(*given).roll(1)

    wrong = SimpleNamespace(response=late, response_gradients=triton.response_gradients)
    assert not response.agrees(wrong, s4d.MODES, torch.device("cpu"), 40)


def test_a_response_under_autograd_has_gradients_of_every_order() -> None:
    layer = S4D(2, 4)
    source = layer._source(*_read(layer))
    assert not response.serves(source)  # on a CPU there is no such kernel
    K = response.make_response(source, 9)
    (first,) = torch.autograd.grad(K.square().sum(), layer.log_dt, create_graph=True)
    want = impulse(layer._bank(9), 9)
    (wanted,) = torch.autograd.grad(want.square().sum(), layer.log_dt, create_graph=True)
    torch.testing.assert_close(first, wanted.to(first.dtype), rtol=1e-4, atol=1e-4)
    second, truth = (torch.autograd.grad(t.sum(), layer.C)[0] for t in (first, wanted))
    torch.testing.assert_close(second, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
def test_a_probe_tells_right_kernels_from_wrong_ones(modes: Modes) -> None:
    right, here = maker(modes.kind), torch.device("cpu")
    assert modes.opaque.agrees(right, here, torch.float32)
    wrong = right._replace(slopes=lambda *given: [1.01 * g for g in right.slopes(*given)])
    assert not modes.opaque.agrees(wrong, here, torch.float32)


def test_held_parameters_have_no_slope() -> None:
    """Beyond the range of logarithms, and where a modulus is held below one."""
    modes = s4d.MODES
    given = [p.clone() for p in modes.example()]
    given[0][0, 0], given[0][1, 1], given[2][2] = 31.0, -41.0, -45.0
    wide = [p.double().requires_grad_() for p in given]
    want = modes.graph(wide, "zoh", 9, False)
    weights = [torch.randn_like(w) for w in want]
    slopes = torch.autograd.grad(want, wide, weights)
    kernels = maker(modes.kind)
    found = kernels.slopes(given, [w.float() for w in weights], "zoh", 9, False)
    for g, w in zip(found, slopes, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-5)
    assert float(found[0][0, 0]) == 0.0
    assert float(found[2][2]) == 0.0


@pytest.mark.parametrize("real", [True, False])
def test_carried_states_and_their_gradients(real: bool) -> None:
    torch.manual_seed(0)
    d, b, m, n = 2, 3, 5, 7
    a = torch.rand(d, n) if real else torch.polar(torch.rand(d, n), torch.randn(d, n))
    s = n if real else 2 * n
    z, h0 = torch.randn(d, b, m, s), torch.randn(d, b, s)
    ends = []
    for run in (carry_triton.carry, carry._torch_carry):
        out = torch.empty(d, b, m, s), torch.empty(d, b, s)
        run(a, z, h0, *out)
        ends.append(out)
    for x, y in zip(*ends, strict=True):
        torch.testing.assert_close(x, y)
    for before in (ends[0][0], None):
        found = []
        for back in (carry_triton.carry_backward, carry._torch_backward):
            g = z.clone()
            found.append([g, *(t for t in back(a, g, h0, before) if t is not None)])
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("modes", ALL, ids=lambda m: m.kind.value)
def test_under_autograd_to_second_order(modes: Modes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU runs them: gradients by the kernel, gradients of gradients by the graph of the truth."""
    monkeypatch.setattr(modes.opaque, "kernels", lambda like, option: maker(modes.kind))
    option = modes.fused[0]
    found = []
    for run in (
        lambda *own: modes.opaque.tables(own, option, 5, False),
        lambda *own: modes.graph(own, option, 5, False),
    ):
        leaves = [p.detach().clone().requires_grad_() for p in modes.example()]
        made = run(*leaves)
        first = torch.autograd.grad((made[0] ** 2).sum() + made[4].sum(), leaves, retain_graph=True, allow_unused=True)
        slopes = torch.autograd.grad((made[0] ** 2).sum(), leaves[2], create_graph=True)
        second = torch.autograd.grad(slopes[0].sum(), leaves[2])
        found.append([*first, *second])
    for i, (g, w) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-5, msg=lambda m, i=i: f"{i}: {m}")
