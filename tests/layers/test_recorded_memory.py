"""What recorded passes keep, who gets rid of it, and what happens where memory runs out; several threads."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import resolvent as rv
from graph_stand_in import Crowded, StandIn
from helpers import assert_close
from resolvent.attacks.capacity import within_memory
from resolvent.layers.recorded import known, recording, without_recording
from resolvent.layers.recorded.known import KINDS, PATIENCE, SEEN, STALE

pytestmark = pytest.mark.usefixtures("graphs")
F64 = torch.float64


@pytest.fixture(autouse=True)
def no_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def _count(layer: nn.Module) -> int:
    own = known._known.get(layer)
    return 0 if own is None else sum(len(kind.recordings) for kind in own.kinds.values())


def _train(layer: nn.Module, x: Tensor, times: int = PATIENCE + 1) -> None:
    for _ in range(times):
        layer(x)[0].sum().backward()


def _kept(layer: nn.Module) -> list[weakref.ref[Any]]:
    return [weakref.ref(r) for kind in known._known[layer].kinds.values() for r in kind.recordings]


@pytest.mark.parametrize("way", ["all", "of a model", "of another", "moved", "cast"])
def test_what_was_recorded_goes_when_asked_and_when_weights_move(way: str) -> None:
    model = nn.Sequential(rv.S4D(4, 6), nn.Identity())
    layer: Any = model[0]
    x = torch.randn(2, 9, 4)
    _train(layer, x)
    held = _kept(layer)
    assert len(held) == 1
    if way == "all":
        assert rv.layers.forget_recordings()
        assert not rv.layers.forget_recordings()
    elif way == "of a model":
        assert rv.layers.forget_recordings(model)
    elif way == "of another":
        assert not rv.layers.forget_recordings(rv.S4D(4, 6))
    elif way == "moved":
        model.to("meta")
    else:
        model.double()
    gc.collect()
    assert (held[0]() is None) is (way != "of another")


def test_a_pass_that_waits_keeps_its_recording_until_its_way_back() -> None:
    layer, x = rv.LRU(4, 3).double(), torch.randn(2, 9, 4, dtype=F64, requires_grad=True)
    _train(layer, x)
    with without_recording():
        want = torch.autograd.grad(layer(x)[0].square().sum(), x)[0]
    loss, held = layer(x)[0].square().sum(), _kept(layer)
    rv.layers.forget_recordings()
    gc.collect()
    assert held[0]() is not None
    assert_close(torch.autograd.grad(loss, x)[0], want, dtype=F64)
    gc.collect()
    assert held[0]() is None  # although the loss is still there


def test_signatures_are_limited_and_those_out_of_use_make_room() -> None:
    layer = rv.S4D(4, 6)
    for l in range(5, 5 + KINDS):
        _train(layer, torch.randn(2, l, 4))
    new = torch.randn(2, 30, 4)
    _train(layer, new, PATIENCE + 5)
    assert _count(layer) == KINDS
    first = next(iter(known._known[layer].kinds.values()))
    _train(layer, new, STALE)
    assert not first.recordings
    assert _count(layer) == KINDS
    for l in range(40, 60):
        layer(torch.randn(2, l, 4))
    assert len(known._known[layer].kinds) == SEEN
    assert _count(layer) == KINDS


class Full(StandIn):
    """A device whose memory is gone while anything is recorded."""

    def replay(self) -> None:
        if Full.is_full:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        super().replay()

    is_full = False


def test_memory_that_runs_out_beside_recordings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a replay, in a pass that is not recorded, in `within_memory`: recordings go for good, the pass runs again."""
    monkeypatch.setitem(recording.GRAPHS, "cpu", Full)
    layer, other = rv.S5(4, 6).double(), rv.S5(4, 6).double()
    x = torch.randn(2, 9, 4, dtype=F64)
    want = layer(x)[0].detach()
    _train(layer, x)
    monkeypatch.setattr(Full, "is_full", True)
    with caplog.at_level(logging.WARNING, "resolvent"):
        assert_close(layer(x)[0].detach(), want, dtype=F64)
    assert "out of memory: recorded passes" in caplog.text
    monkeypatch.setattr(Full, "is_full", False)
    _train(layer, x, 2 * PATIENCE)
    assert _count(layer) == 0

    _train(other, x)
    plain = rv.layers.Layer._pass

    def pass_(self: Any, *args: Any) -> Any:
        if known.are_kept():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, *args)

    assert _count(other) == 1
    with monkeypatch.context() as patch:
        patch.setattr(rv.layers.Layer, "_pass", pass_)
        other(torch.randn(2, 50, 4, dtype=F64))
    assert _count(other) == 0

    third, seen = rv.LRU(4, 3), list[int]()
    _train(third, torch.randn(2, 9, 4))

    def work(count: int) -> int:
        seen.append(count)
        if known.are_kept():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return count

    assert within_memory("test", 8, work) == 8
    assert seen == [8, 8]
    assert _count(third) == 0


def test_what_waits_for_its_way_back_outlasts_older_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs in one memory overwrite what later ones keep: a teacher that was recorded before the student."""
    monkeypatch.setitem(recording.GRAPHS, "cpu", Crowded)
    monkeypatch.setattr(Crowded, "shared", [])
    teacher, student = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double() for _ in range(2))
    x, g = torch.randn(3, 4, dtype=F64), torch.randn(3, 4, dtype=F64)

    def record(module: nn.Module, trains: bool) -> recording.Recording:
        with torch.set_grad_enabled(trains):
            return recording.Recording(module, lambda x, _: (module(x),), x, None, [*module.parameters()], trains)

    older, newer, newest = record(teacher, False), record(student, True), record(teacher, True)
    (y,), (other,) = newer.run(x, None), newest.run(x, None)
    for between in (older, newer):
        between.run(x, None)
    assert_close([y, other], [student(x), teacher(x)], dtype=F64)
    for own, module in ((newest, teacher), (newer, student)):
        want = torch.autograd.grad(module(x), list(module.parameters()), g)
        assert_close(own.run_back([g])[1], list(want), dtype=F64)


def test_another_threads_way_back_does_not_refuse_a_recording() -> None:
    """Recordings of one shape share the place of the gradient that comes in."""
    x = torch.randn(3, 4, dtype=F64)

    def record() -> recording.Recording:
        own = nn.Linear(4, 4).double()
        return recording.Recording(own, lambda x, _: (own(x),), x, None, [*own.parameters()], True)

    other, made = record(), record()
    other.run(x, None)
    other.run_back([torch.full((3, 4), 7.0, dtype=F64)])
    assert made.agrees(torch.allclose)


def test_torchs_own_switches_are_seen(graphs: type[StandIn]) -> None:
    """The precision of products, which torch's older question does not answer once the newer way has set it."""
    x = torch.randn(2, 9, 4)
    for owner, name, value in (
        (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ):
        layer, before = rv.S4D(4, 6), getattr(owner, name)
        _train(layer, x)
        made = graphs.made
        setattr(owner, name, value)
        try:
            _train(layer, x)
        finally:
            setattr(owner, name, before)
        assert graphs.made == made + 2


def test_an_error_of_another_kind_is_the_users() -> None:
    layer = rv.LRU(4, 3)
    _train(layer, torch.randn(2, 9, 4))
    with pytest.raises(ValueError, match="every length"):
        layer(torch.randn(2, 9, 4), lengths=torch.tensor([1, 99]))
    assert _count(layer) == 1


def test_a_parameter_that_changed_before_the_way_back_is_told() -> None:
    layer, x = rv.S4D(4, 6), torch.randn(2, 9, 4)
    _train(layer, x)
    loss = layer(x)[0].sum()
    with torch.no_grad():
        layer.C.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*S4D"):
        loss.backward()


def test_who_follows_operations_sees_them(graphs: type[StandIn]) -> None:
    layer, x = rv.S5(4, 6), torch.randn(2, 9, 4)
    _train(layer, x)

    class Follow(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return f(*args, **(kwargs or {}))

    def count() -> tuple[int, int]:
        with FlopCounterMode(display=False) as flops:
            layer(x)
        with Follow() as follow:
            layer(x)
        return flops.get_total_flops(), follow.calls

    with without_recording():
        want = count()
    found = count()
    assert found[0] == want[0]
    assert found[1] >= want[1]
    made = graphs.made
    with torch.device("cpu"):  # follows nothing but where new tensors go
        _train(layer, torch.randn(3, 9, 4))
    assert graphs.made == made + 2


def test_loops_in_several_threads_have_their_own_gradients() -> None:
    """Threads that share a layer, some of whose passes are being recorded meanwhile."""
    torch.manual_seed(0)
    layer = rv.S5(4, 6).double()
    inputs = [torch.randn(2, 9 + k % 2, 4, dtype=F64) for k in range(4)]

    def slopes(x: Tensor) -> list[Tensor]:
        y = layer(x)[0]
        return list(torch.autograd.grad((y * y.cos()).sum(), list(layer.parameters())))

    with without_recording():
        want = [slopes(x) for x in inputs]
    wrong: list[str] = []

    def work(k: int) -> None:
        try:
            for _ in range(40):
                assert_close(slopes(inputs[k]), want[k], dtype=F64)
        except BaseException as error:  # told in the main thread
            wrong.append(f"{k}: {error!r}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= _count(layer) <= 2 * 4


def test_an_option_that_is_no_scalar_is_seen() -> None:
    layer, x = rv.S4D(4, 6), torch.randn(2, 9, 4)
    layer.note = (1, "a")
    _train(layer, x)
    layer.note = (2, "a")
    _train(layer, x)
    assert len(known._known[layer].kinds) == 2
