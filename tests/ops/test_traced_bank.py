"""A whole pass of a diagonal bank as one node: what the compiler sees is what runs, by torch and by the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import assert_close
from resolvent import layers
from resolvent.layers import dss, ema, s4d
from resolvent.layers.contract import Layer
from resolvent.ops.bank_scan import traced
from resolvent.runtime import transforms

MADE: dict[str, Callable[[], Layer]] = {
    "S4D": lambda: layers.S4D(3, 4),
    "DSS": lambda: layers.DSS(3, 4, bidirectional=True),
    "EMA": lambda: layers.EMA(3, 4),
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "DEVICES", {"cpu"})
    torch.manual_seed(0)


def nodes_of(layer: Layer) -> tuple[Any, list[Any]]:
    """The compiled layer, and the calls of `bank_scan` in its graphs."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(n for n in graph.graph.nodes if "bank_scan" in str(n.target))
        return graph

    torch._dynamo.reset()
    return torch.compile(lambda x, n: layer(x, lengths=n)[0], backend=backend, fullgraph=True, dynamic=True), seen


@pytest.mark.parametrize("name", MADE)
def test_compiled_values_and_gradients_are_the_eager_ones(name: str) -> None:
    layer = MADE[name]().double()
    fast, seen = nodes_of(layer)
    for l in (70, 100):
        x, lengths = torch.randn(2, l, 3, dtype=torch.float64, requires_grad=True), torch.tensor([l, 9])
        found = []
        for run in (fast, lambda x, n: layer(x, lengths=n)[0]):
            y = run(x, lengths)
            found.append([y, *torch.autograd.grad((y * y.cos()).sum(), [x, *layer.parameters()])])
        assert_close(*found)
    assert len(seen) == 1 + layer.bidirectional  # one graph, one node for each direction


@pytest.mark.parametrize("half", [False, True])
def test_autocast_reaches_the_node(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "MATRIX_DEVICES", {"cpu"})
    for width in (transforms.WIDE, transforms.WIDE - 1):  # a layer of a few channels keeps float32
        fast, seen = nodes_of(layers.S4D(width, 4))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            fast(torch.randn(2, 70, width), torch.tensor([70, 9]))
        assert [n.args[-1] for n in seen] == [half and width == transforms.WIDE]


@pytest.mark.parametrize("modes", [s4d.MODES, dss.MODES, ema.MODES], ids=lambda m: m.kind.value)
@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
@pytest.mark.parametrize("half", [False, True])
def test_shapes_that_are_told_are_those_that_come(
    modes: Any, kernels: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels:
        import triton_interpreter  # noqa: F401
    monkeypatch.setattr(traced, "serves", lambda *_: kernels)
    own = [p.clone().requires_grad_() for p in modes.example()]
    given = own, torch.randn(2, 37, 3), torch.tensor([37, 5]), modes.kind.value, modes.fused[0], 16, False, half
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(traced._scan, given, test_utils=utils)
    made = [t.detach() for t in traced._scan(*given)]
    back = made[0], made[1], [p.detach() for p in own], *given[1:3], made[2:], *given[3:]
    torch.library.opcheck(traced._scan_backward, back, test_utils=utils)
