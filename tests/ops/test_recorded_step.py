"""Recorded streaming steps: what is remembered, compared, replayed and refused, with a stand-in for a CUDA graph."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graph_stand_in import StandIn
from helpers import assert_close
from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6, Layer
from resolvent.layers import fast_step as lane
from resolvent.models import build_model
from resolvent.models.presets import robustness
from resolvent.ops.step import recorded

CASES = [
    S4D(4, 6),
    S4(4, 4),
    DSS(4, 3),
    DSS(4, 3, kernel="softmax", length=50),
    EMA(4, 3),
    S5(4, 6),
    LRU(4, 3),
    S6(4, 3),
    RGLRU(4),
]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    """A CPU that records steps, and has no short way of its own."""
    monkeypatch.setattr(recorded, "GRAPHS", {"cpu": StandIn})
    monkeypatch.setattr(lane, "try_step", lambda *_: None)
    StandIn.made = 0
    return StandIn


@pytest.mark.parametrize("layer", CASES, ids=lambda layer: type(layer).__name__)
def test_a_recorded_stream_equals_the_whole_sequence(layer: Layer, graphs: type[StandIn]) -> None:
    layer = copy.deepcopy(layer).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    want, end = layer(x)
    kept: list[Any] = []
    with torch.no_grad(), layer.frozen():
        state, ys = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            ys.append(y_t)
            kept.append(state)
        assert graphs.made == 1
        again = layer(x[:, :5])[1]
    assert_close(torch.stack(ys, 1), want, dtype=torch.float64)
    assert_close(state, end, dtype=torch.float64)
    assert_close(kept[4], again, dtype=torch.float64)  # a state that was returned is not written to again


def test_a_whole_model_is_one_recording(graphs: type[StandIn]) -> None:
    model = build_model(replace(robustness("s4", "mnist"), layers=2, d_model=8)).eval()
    x, heard = torch.rand(3, 6, 1), []
    with torch.no_grad(), model.frozen():
        state, ys = model.initial_state(3), []
        for x_t in x.unbind(1):
            y_t, state = model.step(x_t, state)
            ys.append(y_t)
        assert graphs.made == 1
        hook = model.tower.entry.register_forward_hook(lambda *_: heard.append(1))
        model.step(x[:, 0], state)
        hook.remove()
    assert_close(ys[-1], model(x), tolerance=1e-4)
    assert heard  # somebody listens: nothing is passed over


def test_only_what_comes_again_is_recorded(graphs: type[StandIn]) -> None:
    layer = S4D(4, 6)
    with torch.no_grad():
        for _ in range(3):
            layer.step(torch.randn(2, 4), layer.initial_state(2))  # not frozen
        with layer.frozen():
            for batch in (1, 2, 3):
                layer.step(torch.randn(batch, 4), layer.initial_state(batch))
    assert graphs.made == 0
    with layer.frozen():
        for _ in range(3):
            y, _ = layer.step(torch.randn(2, 4, requires_grad=True), layer.initial_state(2))  # somebody watches
            assert y.requires_grad
    assert graphs.made == 0


def test_parameters_of_another_context_are_seen(graphs: type[StandIn]) -> None:
    layer, x = S4D(4, 6), torch.randn(2, 4)

    def stepped() -> Tensor:
        with torch.no_grad(), layer.frozen():
            for _ in range(3):
                y, _ = layer.step(x, layer.initial_state(2))
            return y

    first = stepped()
    with torch.no_grad():
        layer.C.mul_(2)
        assert layer.D is not None
        layer.D.mul_(2)
    assert_close(stepped(), 2 * first)


def test_a_wrong_replay_is_refused(
    graphs: type[StandIn], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Still(StandIn):
        """Writes nothing: the outputs stay those of zeros."""

        def __init__(self, work: Callable[[], None], device: torch.device, apart: bool = False) -> None:
            pass

        def replay(self) -> None:
            pass

    layer, x = S4D(4, 6), torch.randn(2, 4)
    run = layer._step_long

    def moved(x: Tensor, state: Any) -> Any:
        """Another value at every call, as if it read what has changed since."""
        y, state = run(x, state)
        moved.calls += 1  # type: ignore[attr-defined]
        return y + moved.calls, state  # type: ignore[attr-defined]

    moved.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(recorded, "GRAPHS", {"cpu": Still})
    tables: dict[str, Any] = {}
    with torch.no_grad(), caplog.at_level(logging.WARNING, "resolvent"):
        found = [recorded.replay(tables, moved, x, layer.initial_state(2)) for _ in range(4)]
    assert found == [None] * 4
    assert caplog.text.count("cannot be recorded") == 1


@pytest.mark.parametrize(("layer", "most"), [(S4D(4, 6), 7), (S6(4, 3), 5), (RGLRU(4), 8)], ids=["S4D", "S6", "RGLRU"])
def test_a_replay_takes_few_calls(layer: Layer, most: int, graphs: type[StandIn]) -> None:
    """Beside the graph itself: a copy of each input (one for all where there are many), one of all outputs, and at
    most two views of each output, of which torch counts that as another dtype twice."""
    x, names = torch.randn(2, 4), []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), layer.frozen():
        state = layer.initial_state(2)
        for _ in range(3):
            _, state = layer.step(x, state)
        (made,) = [r for r in layer._tables[recorded.KEY].values() if r]  # type: ignore[index]
        made.graph.replay = lambda: None
        with Counting():
            layer.step(x, state)
    assert 0 < len(names) <= most, names
    assert not any("slice" in name for name in names)


class Interrupted(StandIn):
    """Something happens after the launch: no memory for the outputs, or a key that is pressed."""

    happens = False

    def replay(self) -> None:
        super().replay()
        if Interrupted.happens:
            raise KeyboardInterrupt


@pytest.mark.parametrize("other", [False, True])
def test_a_step_that_was_interrupted_leaves_no_state_halfway(
    other: bool, graphs: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "GRAPHS", {"cpu": Interrupted})
    layer, x = S5(4, 6).double(), torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad(), layer.frozen():
        state = layer.initial_state(2)
        for _ in range(3):
            _, state = layer.step(x, state)
        with monkeypatch.context() as patch:
            patch.setattr(Interrupted, "happens", True)
            with pytest.raises(KeyboardInterrupt):
                layer.step(x, state.clone() if other else state)
        found, want = layer.step(x, state), layer._step_long(x, state)
    assert graphs.made == 1
    assert_close(found, want, dtype=torch.float64)


def test_another_device_and_another_stream_have_recordings_of_their_own(
    graphs: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "GRAPHS", {"cpu": StandIn, "meta": StandIn})
    known, x = dict[Any, Any](), torch.randn(2, 4)
    run = lambda given, _: [2 * t for t in given]  # noqa: E731
    for _ in range(2):
        found = recorded.rerun(known, "twice", run, [x])
    assert_close(found[0], 2 * x)
    assert recorded.rerun(known, "twice", run, [x.to("meta")]) is None  # seen once
    layer, made = S5(4, 6), graphs.made
    with torch.no_grad(), layer.frozen():
        for stream in (0, 1, 0):
            monkeypatch.setattr(recorded, "_stream", lambda _, own=stream: own)
            state = layer.initial_state(2)
            for _ in range(3):
                _, state = layer.step(x, state)
    assert graphs.made == made + 2


def test_forms_of_states() -> None:
    value = (torch.ones(2), {"a": [torch.zeros(1), (torch.ones(3),)], "b": torch.ones(1, dtype=torch.bool)})
    leaves: list[Any] = []
    form = recorded.flatten(value, leaves)
    assert hash(form) == hash(recorded.flatten(value, []))
    assert len(leaves) == 4
    assert_close(recorded.unflatten(form, leaves), value)
    assert type(recorded.unflatten(form, leaves)[1]["a"]) is list


def _copy_state(state: Any) -> Any:
    leaves: list[Tensor] = []
    form = recorded.flatten(state, leaves)
    return recorded.unflatten(form, [t.clone() for t in leaves])


def _halve(state: Any) -> None:
    _leaves(state)[0].mul_(0.5)


def _follow(step: Callable[..., Any], start: Any, x: Tensor) -> list[Any]:
    """Outputs and states of a stream whose state is handed back in every way that people have."""
    found: list[Any] = []
    one = other = start
    for k, x_t in enumerate(x):
        y, one = step(x_t, one)
        found += [y.clone(), _copy_state(one)]  # RG-LRU's output is its state
        if k % 5 == 1:  # another stream in between
            y, other = step(2 * x_t, other)
            found.append(y)
        if k % 7 == 3:
            one = _copy_state(one)
        if k % 11 == 6:
            _halve(one)
        if k % 13 == 8:  # back to an older state
            one = found[-9] if not isinstance(found[-9], Tensor) or found[-9].shape != y.shape else found[-10]
    return found


@pytest.mark.parametrize("layer", [S5(4, 6), RGLRU(4), S6(4, 3)], ids=lambda layer: type(layer).__name__)
def test_a_stream_that_goes_on_copies_its_input_alone(layer: Layer, graphs: type[StandIn]) -> None:
    layer = copy.deepcopy(layer).double()
    x = torch.randn(40, 2, 4, dtype=torch.float64)
    with torch.no_grad(), layer.frozen():
        want = _follow(layer._step_long, layer.initial_state(2), x)
        assert_close(_follow(layer.step, layer.initial_state(2), x), want, dtype=torch.float64)
        assert graphs.made == 1
        _, state = layer.step(x[0], layer.initial_state(2))
        own = layer._tables[recorded.LAST].made.given[1]
        lies = own.data_ptr(), own.clone()
        first, kept = _leaves(state)[0], _copy_state(state)
        assert torch.equal(own, first)  # where the next launch reads it
        y, _ = layer.step(x[1], state)
        assert own.data_ptr() == lies[0]
        assert not torch.equal(own, lies[1])
        assert_close(y, layer._step_long(x[1], kept)[0], dtype=torch.float64)


def _leaves(state: Any) -> list[Tensor]:
    leaves: list[Tensor] = []
    recorded.flatten(state, leaves)
    return leaves


def test_a_stream_in_inference_mode(graphs: type[StandIn]) -> None:
    """Nobody counts what is written there: its state is copied at every step."""
    layer, x = LRU(4, 3).double(), torch.randn(9, 2, 4, dtype=torch.float64)
    found = []
    with torch.inference_mode(), layer.frozen():
        state = layer.initial_state(2)
        for x_t in x:
            y, state = layer.step(x_t, state)
            found.append(y)
            state.mul_(0.5)
    assert graphs.made == 1
    want, state = [], layer.initial_state(2)
    for x_t in x:
        y, state = layer._step_long(x_t, state)
        want.append(y)
        state = state * 0.5
    assert_close(torch.stack(found).clone(), torch.stack(want), dtype=torch.float64)
