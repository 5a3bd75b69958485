"""Graphs that compiled passes keep for their way back: used once, or again with retain_graph, gone with their mark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

import resolvent as rv
from helpers import assert_close
from resolvent.layers import s5
from resolvent.ops import kept
from resolvent.ops.opaque import Opaque

F64 = torch.float64
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "S4D": lambda: rv.S4D(4, 6), "S4": lambda: rv.S4(4, 4), "DSS": lambda: rv.DSS(4, 3), "EMA": lambda: rv.EMA(4, 3),
    "S5": lambda: rv.S5(4, 6), "LRU": lambda: rv.LRU(4, 3), "L2RU": lambda: rv.L2RU(4),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept._kept.clear()
    with torch._functorch.config.patch(donated_buffer=False):  # which torch wants for retain_graph
        yield


def _compile(layer: nn.Module) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(lambda x: layer(x)[0], backend="aot_eager", fullgraph=True)


def _slopes(y: Tensor, layer: nn.Module, x: Tensor, **how: bool) -> list[Tensor]:
    return list(torch.autograd.grad((y * y.cos()).sum(), [x, *layer.parameters()], **how))


@pytest.mark.parametrize("name", LAYERS)
def test_a_way_back_uses_what_was_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(2, 300, 4, dtype=F64, requires_grad=True)
    want = _slopes(layer(x)[0], layer, x)
    run = _compile(layer)
    run(x).sum().backward()
    assert not kept._kept

    def never(*args: Any) -> Any:
        raise AssertionError("tables are made once more")

    with monkeypatch.context() as patch:
        patch.setattr(Opaque, "slopes", never)
        first, second = run(x), run(2 * x)  # two at once
        assert_close(_slopes(first, layer, x, retain_graph=True), want, dtype=F64)
        assert_close(_slopes(first, layer, x), want, dtype=F64)
        second.sum().backward()
    assert not kept._kept


def test_what_is_not_there_is_made_again() -> None:
    layer = rv.S4D(4, 6).double()
    x = torch.randn(2, 300, 4, dtype=F64, requires_grad=True)
    want = _slopes(layer(x)[0], layer, x)
    y = _compile(layer)(x)
    kept._kept.clear()
    assert_close(_slopes(y, layer, x), want, dtype=F64)


def test_what_nobody_waits_for_goes() -> None:
    layer, x = rv.S4D(4, 6), torch.randn(2, 300, 4)
    run = _compile(layer)
    for _ in range(3):
        y = run(x)
    assert len(kept._kept) <= 2
    del y
    gc.collect()
    waiting = run(x)
    assert len(kept._kept) == 1
    with torch.no_grad():
        run(x)  # keeps nothing
    assert len(kept._kept) == 1
    waiting.sum().backward()
    assert not kept._kept


def test_an_exported_program_keeps_nothing() -> None:
    program = torch.export.export(rv.S4D(4, 6).eval(), (torch.randn(2, 300, 4),))
    run = program.module()
    run(torch.randn(2, 300, 4))
    assert not kept._kept


COMPILED = [pytest.param(name, marks=() if name == "S5" else pytest.mark.slow) for name in LAYERS]


@pytest.mark.parametrize("name", COMPILED)
def test_memory_that_the_compiler_uses_again_is_not_what_was_kept(name: str) -> None:
    """Weights that are made inside of the graph, in buffers that later ones take over; by the compiler itself."""
    torch.manual_seed(0)
    layers = nn.ModuleList(LAYERS[name]().double() for _ in range(3))
    x = torch.randn(2, 300, 4, dtype=F64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            own = {key: 1.5 * p for key, p in layer.named_parameters()}
            x = x + torch.func.functional_call(layer, own, (x,))[0].tanh()
        return x

    want = _slopes(run(x), layers, x)
    torch._dynamo.reset()
    assert_close(_slopes(torch.compile(run, fullgraph=True)(x), layers, x), want, dtype=F64)


def test_inputs_may_be_overwritten() -> None:
    layer = rv.S5(4, 6).double()
    own = [p.detach().clone() for p in (layer.lam, layer.log_step, layer.B, layer.C)]
    maker, how = s5.TABLES.opaque, (f"{layer._option} 1.0", 0, False)
    *made, mark = maker.run_kept(own, *how)
    g = [torch.randn_like(t) for t in made]
    want = maker.slopes(own, g, *how)
    for p in own:
        p.fill_(torch.nan)
    found = kept.take(mark)
    assert found is not None
    leaves, ends = found[0]
    assert_close(list(torch.autograd.grad(ends, leaves, g)), want, dtype=F64)
