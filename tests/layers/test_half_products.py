"""Half products under autocast: on a GPU, and here on a CPU that is said to have units for them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import assert_close, stir
from resolvent.blocks import Mamba
from resolvent.layers import RGLRU, S6
from resolvent.layers.contract import Layer
from resolvent.runtime import transforms

LAYERS: dict[str, Callable[[], Layer]] = {
    "S6": lambda: S6(16, 4),
    "S6, both directions": lambda: S6(16, 4, bidirectional=True),
    "RGLRU": lambda: RGLRU(16),
    "RGLRU, heads": lambda: RGLRU(16, heads=4),
    "RGLRU, both directions": lambda: RGLRU(16, bidirectional=True),
    "Mamba": lambda: Mamba(16, 4),
}
STREAMING = [name for name in LAYERS if "both" not in name]


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "MATRIX_DEVICES", {"cpu"})
    monkeypatch.setattr("resolvent.blocks.mamba.MATRIX_DEVICES", {"cpu"})
    torch.manual_seed(0)


def made(name: str) -> Layer:
    layer = LAYERS[name]()
    stir(layer, 0.05)
    return layer


def run(layer: Layer, x: Tensor, half: bool, state: Any = None, **given: Any) -> tuple[Tensor, Any]:
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y, end = layer(x, state, **given)
    return y, end


def derive(layer: Layer, x: Tensor, half: bool, **given: Any) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = run(layer, x, half, **given)[0]
    weight = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    (y * weight).sum().backward()
    assert x.grad is not None
    found = {"y": y.detach(), "x": x.grad} | {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    layer.zero_grad()
    return found


class Products(TorchDispatchMode):
    """The dtypes of what is multiplied in products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm", "baddbmm_"):
            self.dtypes |= {t.dtype for t in args if isinstance(t, Tensor)}
        return function(*args, **kwargs or {})


def matrix_dtypes(function: Callable[[], Any]) -> set[torch.dtype]:
    with Products() as seen:
        function()
    return seen.dtypes


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("length", [7, 130])
def test_values_and_gradients_are_those_of_float64(name: str, length: int) -> None:
    layer = made(name)
    x = torch.randn(3, length, 16)
    got, want = derive(layer, x, True), derive(deepcopy(layer).double(), x.double(), False)
    assert got.keys() == want.keys()
    for key in want:
        # autocast's own products around S6, itself in float32, already move this gradient by 3e-2 of its scale
        own = 4e-2 if (name, key) == ("Mamba", "ssm.A_log") else None
        assert_close(got[key], want[key], dtype=torch.bfloat16, gradient=key != "y", tolerance=own)
        assert got[key].dtype == torch.float32


@pytest.mark.parametrize("name", STREAMING)
def test_states_and_lengths(name: str) -> None:
    """Two halves, the second from the first one's state, and rows of their own lengths; states stay float32."""
    layer, x = made(name), torch.randn(2, 20, 16)
    wide = deepcopy(layer).double()
    want, want_end = run(wide, x.double(), False)
    first, middle = run(layer, x[:, :9], True)
    second, end = run(layer, x[:, 9:], True, middle)
    assert_close(torch.cat([first, second], 1), want, dtype=torch.bfloat16)
    assert_close(end, want_end, dtype=torch.bfloat16)
    assert all(t.dtype != torch.bfloat16 for t in _tensors(middle) + _tensors(end))
    lengths = torch.tensor([20, 6])
    got, want = run(layer, x, True, lengths=lengths), run(wide, x.double(), False, lengths=lengths)
    assert_close(got, want, dtype=torch.bfloat16)


def _tensors(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [t for part in state.values() for t in _tensors(part)]


@pytest.mark.parametrize("name", LAYERS)
def test_no_product_of_matrices_is_wide(name: str) -> None:
    layer, x = made(name), torch.randn(2, 40, 16)
    derive(layer, x, True)  # the first use of a kernel tries it out
    assert matrix_dtypes(lambda: derive(layer, x, True)) == {torch.bfloat16}
    assert matrix_dtypes(lambda: derive(layer, x, False)) == {torch.float32}


@pytest.mark.parametrize("name", LAYERS)
def test_without_units_a_layer_stays_wide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "MATRIX_DEVICES", {"cuda"})
    monkeypatch.setattr("resolvent.blocks.mamba.MATRIX_DEVICES", {"cuda"})
    layer, x = made(name), torch.randn(2, 40, 16)
    if name != "Mamba":  # its own projections are autocast's
        assert_close(run(layer, x, True)[0], run(layer, x, False)[0])


@pytest.mark.parametrize("name", LAYERS)
def test_frozen_rounds_the_weights_once(name: str) -> None:
    layer, x = made(name), torch.randn(2, 40, 16)
    want = run(layer, x, True)[0]
    with layer.frozen():
        assert_close(run(layer, x, True)[0], want)
        assert_close(run(layer, x, True)[0], want)


@pytest.mark.parametrize("name", ["S6", "RGLRU"])
def test_gradients_of_gradients(name: str) -> None:
    layer = made(name)

    def curvature(own: Layer, x: Tensor, half: bool) -> Tensor:
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(run(own, x, half)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    x = torch.randn(2, 6, 16)
    got, want = curvature(layer, x, True), curvature(deepcopy(layer).double(), x.double(), False)
    assert_close(got, want, tolerance=5e-2)  # half types twice over: each derivative rounds the one before
