"""The longer blocks of a GPU with matrix units, on a CPU in float64: the same layers, every output and gradient."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers import DSS, EMA, S4, S4D
from resolvent.layers.contract import Layer
from resolvent.ssm import blocked, toeplitz

MAKES: dict[str, Callable[..., Layer]] = {
    "S4": lambda **more: S4(3, 6, **more),
    "S4D": lambda **more: S4D(3, 6, **more),
    "DSS": lambda **more: DSS(3, 6, **more),
    "EMA": lambda **more: EMA(3, 4, **more),
}


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on layers take the longer blocks."""

    def switch() -> None:
        monkeypatch.setattr(blocked, "steps", lambda u: blocked.wide_length(u.shape[1]))

    return switch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def outcome(layer: Layer, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> list[Tensor]:
    """Output, end state and the gradients of x, the start and the parameters."""
    x = x.clone().requires_grad_()
    h = None if state is None else state.clone().requires_grad_()
    y, end = layer(x, h, lengths)
    value = y.square().sum() if end is None else y.square().sum() + (end * end.conj()).real.sum()
    leaves = [x, *([] if h is None else [h]), *layer.parameters()]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return [y, *([] if end is None else [end]), *(g for g in found if g is not None)]


@pytest.mark.parametrize("l", [65, 128, 300, 784])
@pytest.mark.parametrize("name", MAKES)
def test_the_same_layer(name: str, l: int, wide: Callable[[], None]) -> None:
    layer, x = MAKES[name]().double(), torch.randn(2, l, 3, dtype=torch.float64)
    _, start = layer(torch.randn(2, 5, 3, dtype=torch.float64))
    start = start.detach()
    want = outcome(layer, x, start)
    wide()
    for got, w in zip(outcome(layer, x, start), want, strict=True):
        assert_close(got, w)


@pytest.mark.parametrize("name", MAKES)
def test_padded_sequences(name: str, wide: Callable[[], None]) -> None:
    layer, x = MAKES[name]().double(), torch.randn(4, 300, 3, dtype=torch.float64)
    lengths = torch.tensor([300, 1, 257, 128])
    want = outcome(layer, x, lengths=lengths)
    wide()
    for got, w in zip(outcome(layer, x, lengths=lengths), want, strict=True):
        assert_close(got, w)


@pytest.mark.parametrize("name", MAKES)
def test_both_directions(name: str, wide: Callable[[], None]) -> None:
    layer, x = MAKES[name](bidirectional=True).double(), torch.randn(2, 200, 3, dtype=torch.float64)
    want = outcome(layer, x)
    wide()
    for got, w in zip(outcome(layer, x), want, strict=True):
        assert_close(got, w)


@pytest.mark.parametrize("name", MAKES)
def test_pieces_and_frozen(name: str, wide: Callable[[], None]) -> None:
    """A whole sequence, and pieces of other lengths that hand their state on, inside `frozen()`."""
    layer, x = MAKES[name]().double(), torch.randn(2, 700, 3, dtype=torch.float64)
    with torch.no_grad():
        want, end = layer(x)
        wide()
        with layer.frozen():
            state, found = None, []
            for piece in x.split([260, 10, 430], 1):
                y, state = layer(piece, state)
                found.append(y)
    assert_close(torch.cat(found, 1), want)
    assert_close(state, end)


def test_second_derivatives(wide: Callable[[], None]) -> None:
    layer, x = S4D(2, 4).double(), torch.randn(1, 130, 2, dtype=torch.float64)
    found = []
    for _ in range(2):
        at = x.clone().requires_grad_()
        leaves = [at, *layer.parameters()]
        first = torch.autograd.grad(layer(at)[0].pow(3).sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), leaves))
        wide()
    for got, w in zip(*found[::-1], strict=True):
        assert_close(got, w)


@pytest.mark.parametrize("l", [65, 127, 128, 129, 640, 784, 1000, 1024, 65_536])
def test_blocks_are_whole_slices_with_little_padding(l: int) -> None:
    T = blocked.wide_length(l)
    assert T % toeplitz.SLICE["cuda"] == 0
    assert -l % T == -l % 128 if l > 128 else T == 128


def test_who_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 beyond a short block on a GPU that has the kernels, where nothing but autograd is watching."""
    monkeypatch.setattr(toeplitz, "_triton", lambda: SimpleNamespace(takes=lambda like, size, l, dtype: like.roomy))

    def asked(l: int, dtype: torch.dtype = torch.float32, is_cuda: bool = True, roomy: bool = True) -> int:
        u: Any = SimpleNamespace(shape=(2, l, 3), dtype=dtype, is_cuda=is_cuda, roomy=roomy)
        return blocked.steps(u)

    assert asked(1000) == 256
    assert asked(64) == 64
    others = asked(1000, torch.float64), asked(1000, is_cuda=False), asked(1000, roomy=False)
    assert set(others) == {blocked.block_length(1000)}
    monkeypatch.setattr(blocked, "plain", lambda: False)
    assert asked(1000) == blocked.block_length(1000)
