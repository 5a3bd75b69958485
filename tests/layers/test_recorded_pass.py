"""Recorded passes of layers: what is recorded, replayed, refused and given up, with a stand-in for a CUDA graph."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rv
from graph_stand_in import StandIn
from helpers import assert_close
from resolvent.layers.recorded import forget_recordings, known, without_recording
from resolvent.layers.recorded.known import COPIES, PATIENCE

pytestmark = pytest.mark.usefixtures("graphs")
F64 = torch.float64
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "S4D": lambda: rv.S4D(4, 6), "S4": lambda: rv.S4(4, 4), "DSS": lambda: rv.DSS(4, 3), "EMA": lambda: rv.EMA(4, 3),
    "S5": lambda: rv.S5(4, 6), "LRU": lambda: rv.LRU(4, 3), "S6": lambda: rv.S6(4, 3), "RGLRU": lambda: rv.RGLRU(4),
    "L2RU": lambda: rv.L2RU(4), "Mamba": lambda: rv.Mamba(4, 3), "both": lambda: rv.S5(4, 6, bidirectional=True),
    "block": lambda: rv.blocks.Residual(rv.S4D(4, 6)),
}  # fmt: skip


def _train(layer: nn.Module, lengths: Tensor | None = None, steps: int = PATIENCE + 3) -> list[Tensor]:
    """Values, states and gradients of some steps of a loop that keeps its last loss."""
    torch.manual_seed(1)
    found: list[Tensor] = []
    for _ in range(steps):
        x = torch.randn(3, 21, 4, dtype=F64, requires_grad=True)
        y, _ = layer(x, lengths=lengths)
        loss = (y * y.cos()).sum()
        loss.backward()
        found += [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]
        layer.zero_grad()
    return found


@pytest.mark.parametrize("lengths", [None, torch.tensor([21, 4, 13])], ids=["whole", "padded"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_recorded_pass_has_the_numbers_of_the_pass(name: str, lengths: Any, graphs: type[StandIn]) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    with without_recording():
        want = _train(layer, lengths)
    assert graphs.made == 0
    found = _train(layer, lengths)
    assert graphs.made == 2  # forwards and backwards
    assert_close(found, want, dtype=F64)


def test_shapes_that_change_are_never_recorded(graphs: type[StandIn]) -> None:
    layer = rv.S4D(4, 6)
    for l in range(10, 30):
        layer(torch.randn(2, l, 4))[0].sum().backward()
    assert graphs.made == 0


def test_a_second_backward_passes_at_once_and_other_gradients(graphs: type[StandIn]) -> None:
    layer = rv.S4D(4, 6).double()
    x = torch.randn(2, 30, 4, dtype=F64, requires_grad=True)
    for _ in range(PATIENCE + 1):
        layer(x)[0].sum().backward()
    assert graphs.made == 2

    def ask(both: bool) -> list[Tensor]:
        y, state = layer(x)
        twice = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for _ in range(2)]
        at_once = layer(x)[0], layer(2 * x)[0], layer(3 * x)[0]
        found = [*twice, *torch.autograd.grad(sum(t.square().sum() for t in at_once), x)]
        if both:
            found += torch.autograd.grad(state.abs().sum() + y.sum(), x, retain_graph=True)
            slope = torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]
            found += torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])
        return found

    with without_recording():
        want = ask(False), ask(True)
    assert_close(ask(False), want[0], dtype=F64)
    assert_close(ask(True), want[1], dtype=F64)
    made = graphs.made
    assert_close(ask(True), want[1], dtype=F64)
    assert graphs.made == made  # one that would run twice is given up


def test_passes_that_wait_have_recordings_of_their_own(graphs: type[StandIn]) -> None:
    layer = rv.LRU(4, 3).double()
    x = torch.randn(2, 9, 4, dtype=F64, requires_grad=True)
    for _ in range(4 * (PATIENCE + 1)):
        sum(layer(x * k)[0].square().sum() for k in (1, 2)).backward()
    assert graphs.made == 4
    for _ in range(9 * (PATIENCE + 1)):
        sum(layer(x * k)[0].square().sum() for k in range(9)).backward()
    assert graphs.made == 2 * COPIES


def test_evaluation_is_recorded_forwards_alone(graphs: type[StandIn]) -> None:
    layer = rv.S5(4, 6).double()
    x = torch.randn(2, 9, 4, dtype=F64)
    want = layer(x)[0].detach()
    with torch.inference_mode():
        for _ in range(PATIENCE + 2):
            y = layer(x)[0]
    assert graphs.made == 1
    assert y.is_inference()
    assert_close(y.clone(), want, dtype=F64)


class Doubled(rv.S4D):
    def _sequence(self, x: Tensor, state: Any, lengths: Any) -> Any:
        y, state = super()._sequence(x, state, lengths)
        return 2 * y, state


def _hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize("layer", [Doubled(4, 6), _hooked(rv.S4D(4, 6)), rv.S4D(4, 6, check_finite=True)])
def test_own_code_runs_at_every_call(layer: nn.Module, graphs: type[StandIn]) -> None:
    watched = not layer.check_finite
    for _ in range(PATIENCE + 3):
        layer(torch.randn(2, 9, 4))[0].sum().backward()
    assert (graphs.made == 0) is watched
    if not watched:
        with pytest.raises(ValueError, match="NaN or infinity"):
            layer(torch.full((2, 9, 4), torch.nan))


def test_what_changes_is_seen(graphs: type[StandIn]) -> None:
    """An option, a parameter in place, a parameter replaced, frozen(), saved-tensor hooks."""
    layer = rv.S4D(4, 6).double()
    x = torch.randn(2, 9, 4, dtype=F64)

    def check() -> None:
        found = [layer(x)[0] for _ in range(PATIENCE + 2)][-1]
        with without_recording():
            assert_close(found, layer(x)[0], dtype=F64)

    check()
    layer.discretisation = "bilinear"
    check()
    with torch.no_grad():
        layer.C.mul_(2)
    check()
    layer.C = nn.Parameter(layer.C.detach() * 3)
    check()
    made = graphs.made
    with layer.frozen():
        check()
    with torch.autograd.graph.save_on_cpu():
        check()
    assert graphs.made == made


def test_a_layer_is_not_kept_alive() -> None:
    layer = rv.S6(4, 3)
    for _ in range(PATIENCE + 2):
        layer(torch.randn(2, 9, 4))[0].sum().backward()
    known = weakref.ref(layer)
    del layer
    gc.collect()
    assert known() is None


def test_a_recording_that_differs_is_refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(StandIn):
        def replay(self) -> None:
            super().replay()
            self.work.__self__.outputs = [t * 2 for t in self.work.__self__.outputs]  # type: ignore[attr-defined]

    from resolvent.layers.recorded import recording

    monkeypatch.setitem(recording.GRAPHS, "cpu", Wrong)
    layer, x = rv.EMA(4, 3).double(), torch.randn(2, 9, 4, dtype=F64)
    want = layer(x)[0]
    with caplog.at_level(logging.WARNING, "resolvent"):
        for _ in range(PATIENCE + 4):
            assert_close(layer(x)[0], want, dtype=F64)
    assert [r.getMessage() for r in caplog.records].count(caplog.records[0].getMessage()) == 1
    assert "other numbers" in caplog.text


def test_recordings_are_given_up_when_asked(graphs: type[StandIn]) -> None:
    layer = rv.S4D(4, 6)
    for _ in range(PATIENCE + 1):
        layer(torch.randn(2, 9, 4))
    assert forget_recordings()
    assert not forget_recordings()


def test_what_a_pass_rounds_at_its_ends_lies_rounded() -> None:
    """Mamba under autocast: half the memory, the same bits, in the dtype of x."""
    torch.manual_seed(0)
    block, x = rv.Mamba(4, 3), torch.randn(2, 9, 4, requires_grad=True)

    def ask(twice: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = block(x)
        found = list(torch.autograd.grad(y.square().sum(), [x, *block.parameters()], create_graph=twice))
        return [y.detach(), *(torch.autograd.grad(found[0].square().sum(), [x]) if twice else found)]

    with without_recording():
        want, curved = ask(False), ask(True)
    for _ in range(PATIENCE + 1):
        found = ask(False)
    assert [t.dtype for t in found] == [t.dtype for t in want]
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    (own,) = (r for kind in known._known[block].kinds.values() for r in kind.recordings)
    assert own.x.dtype == own.g[0].dtype == torch.bfloat16
    assert_close(ask(True), curved, dtype=torch.bfloat16)
