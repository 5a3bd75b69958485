"""Runs recorded on real numbers, and derivatives taken inside of compiled code, against the eager pass in float64.

There an operator of ours would be silent: a kernel's writes are missing in a recording, and tangents end at it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, linearize
from torch.fx.experimental.proxy_tensor import make_fx

import resolvent as rv
from resolvent.conformance.tolerance import distance

MAKERS: dict[str, Callable[[], Any]] = {
    "S4D": lambda: rv.S4D(6, 8),
    "S5 both ways": lambda: rv.S5(6, 8, bidirectional=True),
    "S6": lambda: rv.S6(6, 4),
    "S4": lambda: rv.S4(6, 8),
    "DSS softmax": lambda: rv.DSS(6, 8, kernel="softmax", length=80),
    "LRU": lambda: rv.LRU(6, 8),
    "L2RU": lambda: rv.L2RU(6, 8),
    "RGLRU": lambda: rv.RGLRU(6),
    "Attention": lambda: rv.layers.Attention(6),
    "Mamba": lambda: rv.blocks.Mamba(6, 4),
}
QUICK = ("S5 both ways",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS]
CLOSE = 1e-5


class Outputs(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)[0]
        return y


class Case:
    """A layer in float32, its twin in float64, two inputs, and a direction in x and in each parameter."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.layer = Outputs(MAKERS[name]()).eval()
        self.twin = copy.deepcopy(self.layer).double()
        self.x, self.other, self.v = (torch.randn(2, 70, 6) for _ in range(3))
        self.given = {name: p.detach() for name, p in self.layer.named_parameters()}
        self.along = {name: torch.randn_like(p) for name, p in self.given.items()}

    def tangent(self) -> Tensor:
        """J v in x by two reverse passes in float64."""
        found: Tensor = torch.autograd.functional.jvp(self.twin, self.x.double(), self.v.double())[1]
        return found

    def tangent_of_parameters(self) -> Tensor:
        names = list(self.given)

        def run(*own: Tensor) -> Any:
            return functional_call(self.twin, dict(zip(names, own, strict=True)), (self.x.double(),))

        point, along = (tuple(t.double() for t in d.values()) for d in (self.given, self.along))
        found: Tensor = torch.autograd.functional.jvp(run, point, along)[1]
        return found


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_run_plays_back_on_other_numbers(name: str) -> None:
    case = Case(name)
    want = case.twin(case.other.double())
    traced = torch.jit.trace(case.layer, (case.x,), check_trace=False)
    for run in (make_fx(case.layer)(case.x), traced):
        assert distance(run(case.other), want) <= CLOSE


@pytest.mark.parametrize("frozen", [False, True])
def test_recorded_steps_play_back_on_other_numbers(frozen: bool) -> None:
    case = Case("S4D")
    layer: Any = case.layer.layer

    def run(x: Tensor) -> Tensor:
        first, state = layer.step(x[:, 0], layer.initial_state(2))
        return torch.stack([first, layer.step(x[:, 1], state)[0]], 1)

    with torch.no_grad(), rv.frozen(layer) if frozen else torch.no_grad():
        run(case.x)
        found = make_fx(run)(case.x)(case.other)
    assert distance(found, case.twin(case.other.double())[:, :2]) <= CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_a_linearisation(name: str) -> None:
    case = Case(name)
    assert distance(linearize(case.layer, case.x)[1](case.v), case.tangent()) <= CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_derivatives_inside_of_compiled_code(name: str) -> None:
    case = Case(name)

    def compiled(run: Callable[[], Any]) -> Any:
        torch._dynamo.reset()
        return torch.compile(run, backend="aot_eager", fullgraph=True)()

    slope = compiled(lambda: grad(lambda z: (case.layer(z) * case.v).sum())(case.x))
    tangent = compiled(lambda: jvp(case.layer, (case.x,), (case.v,))[1])
    own = lambda given: functional_call(case.layer, given, (case.x,))  # noqa: E731
    moved = compiled(lambda: jvp(own, (case.given,), (case.along,))[1])
    torch._dynamo.reset()
    x = case.x.double().requires_grad_()
    (want,) = torch.autograd.grad((case.twin(x) * case.v).sum(), x)
    assert distance(slope, want) <= CLOSE
    assert distance(tangent, case.tangent()) <= CLOSE
    assert distance(moved, case.tangent_of_parameters()) <= CLOSE


def test_a_jacobian_by_vectorised_tangents() -> None:
    case = Case("S4D")
    x = case.x[:1, :5]
    found = torch.autograd.functional.jacobian(case.layer, x, vectorize=True, strategy="forward-mode")
    assert distance(found, torch.autograd.functional.jacobian(case.twin, x.double())) <= CLOSE
