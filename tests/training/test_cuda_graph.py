"""What a model remembers of its recorded steps: a bounded number, the one used longest ago forgotten first."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graph_stand_in import Tape
from helpers import assert_close
from resolvent.attacks import Draws, Threat
from resolvent.runtime.dispatch import use
from resolvent.training.step import cuda_graph
from resolvent.training.step.batch import Batch


class Replays(cuda_graph._Recording):
    """A recording of nothing."""

    def __init__(self) -> None:
        self.count = 0

    def replay(self, batch: Batch, again: Any) -> tuple[Tensor, Tensor]:
        self.count += 1
        return torch.zeros(()), batch.x


def batch(b: int = 2) -> Batch:
    return Batch(torch.zeros(b, 3, 1), torch.zeros(b, dtype=torch.int64), None, Draws(0, torch.arange(b)))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Replays]:
    """Every recording that was made, without a GPU."""
    made: list[Replays] = []

    def record(*given: Any) -> Replays:
        made.append(Replays())
        return made[-1]

    monkeypatch.setattr(cuda_graph, "_record", record)
    return made


def step(model: nn.Module, loss: Any, given: Batch | None = None, form: Any = None, threat: Any = None) -> Any:
    return cuda_graph.replay(model, (form, torch.float32), given or batch(), threat, loss)


def fresh() -> Any:
    """A loss that equals no other."""
    return lambda passes, held: (held.x.sum(), held.x)


def test_the_second_time_records_and_the_third_replays(recorded: list[Replays]) -> None:
    model, loss = nn.Linear(1, 1), fresh()
    assert step(model, loss) is None
    assert step(model, loss) is not None
    assert step(model, loss) is not None
    assert [r.count for r in recorded] == [2]


def test_losses_made_anew_do_not_pile_up(recorded: list[Replays]) -> None:
    model, losses = nn.Linear(1, 1), [fresh() for _ in range(3 * cuda_graph.KNOWN)]
    assert all(step(model, loss) is None for loss in losses)
    known = cuda_graph._recorded[model][1]
    assert [name[0] for name in known] == losses[-cuda_graph.KNOWN :]
    assert not recorded


def test_what_is_used_stays(recorded: list[Replays]) -> None:
    model, loss = nn.Linear(1, 1), fresh()
    step(model, loss)
    for _ in range(3 * cuda_graph.KNOWN):
        step(model, fresh())
        assert step(model, loss) is not None
    assert [r.count for r in recorded] == [3 * cuda_graph.KNOWN]


def test_a_recording_that_is_never_used_makes_room(recorded: list[Replays]) -> None:
    """Sizes that came before are forgotten in time, and with them their graphs, of which only so many may be there."""
    model, loss = nn.Linear(1, 1), fresh()
    for b in range(1, cuda_graph.MOST + 2):
        for _ in range(2):
            step(model, loss, batch(b))
    assert len(recorded) == cuda_graph.MOST
    for _ in range(cuda_graph.KNOWN):
        step(model, fresh())
    for _ in range(2):
        step(model, loss, batch(9))
    assert len(recorded) == cuda_graph.MOST + 1


def test_other_settings_another_precision_and_sizes_written_to_are_other_steps(recorded: list[Replays]) -> None:
    model, loss, eps = nn.Linear(1, 1), fresh(), torch.tensor(0.1)
    threat = Threat("linf", eps)
    for _ in range(3):
        step(model, loss, threat=threat)
    eps.mul_(2)
    assert step(model, loss, threat=threat) is None
    model.option = "another"  # type: ignore[assignment]
    assert step(model, loss, threat=threat) is None
    torch.backends.cudnn.deterministic = True
    try:
        assert step(model, loss, threat=threat) is None
    finally:
        torch.backends.cudnn.deterministic = False
    with use("torch"):
        assert step(model, loss, threat=threat) is None
    assert [r.count for r in recorded] == [2]


# -- with a tape in place of a graph -----------------------------------------------------------------------------------


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> type[Tape]:
    monkeypatch.setitem(cuda_graph.GRAPHS, "cpu", Tape)
    monkeypatch.setattr(Tape, "replays", 0)
    return Tape


class Curved:
    """A form whose tables are the weight itself."""

    def __init__(self, model: nn.Linear) -> None:
        self.model = model

    def tables(self, length: int, dtype: torch.dtype) -> Any:
        return SimpleNamespace(w=self.model.weight, detached=lambda: None)

    def __call__(self, x: Tensor, tables: Any) -> Tensor:
        return (x[..., 0] @ tables.w.t()).sin()


def square(passes: Any, held: Batch) -> tuple[Tensor, Tensor]:
    output = passes.learnt(held.x)
    return output.square().mean(), output


def test_second_derivatives_are_those_of_the_step(tapes: type[Tape]) -> None:
    model = nn.Linear(3, 2, bias=False)
    form, x = Curved(model), torch.rand(4, 3, 1)
    given = Batch(x, torch.zeros(4, dtype=torch.int64), None, Draws(0, torch.arange(4)))
    for _ in range(3):
        found = step(model, square, given, form)
    assert tapes.replays == 2
    value = form(x, form.tables(3, torch.float32)).square().mean()
    slopes, curves = [], []
    for own in (found[0], value):
        (slope,) = torch.autograd.grad(own, [model.weight], create_graph=True)
        slopes.append(slope.detach())
        curves.append(torch.autograd.grad(slope.square().sum(), [model.weight])[0])
    assert_close(slopes[0], slopes[1])
    assert_close(curves[0], curves[1])


def test_a_model_is_not_kept_alive_by_its_steps(tapes: type[Tape]) -> None:
    model = nn.Linear(3, 2, bias=False)
    given = Batch(torch.rand(4, 3, 1), torch.zeros(4, dtype=torch.int64), None, Draws(0, torch.arange(4)))
    for _ in range(3):
        found = step(model, square, given, Curved(model))
    assert found is not None
    known = weakref.ref(model)
    del found, model
    gc.collect()
    assert known() is None


def test_a_step_that_waits_for_the_device_runs_as_ever(tapes: type[Tape], caplog: pytest.LogCaptureFixture) -> None:
    def waits(passes: Any, held: Batch) -> tuple[Tensor, Tensor]:
        value, output = square(passes, held)
        return value * float(held.x.sum()), output

    model = nn.Linear(3, 2, bias=False)
    given = Batch(torch.rand(4, 3, 1), torch.zeros(4, dtype=torch.int64), None, Draws(0, torch.arange(4)))
    assert [step(model, waits, given, Curved(model)) for _ in range(4)] == [None] * 4
    assert caplog.text.count("cannot be recorded as a CUDA graph") == 1


def test_a_replay_that_was_interrupted_has_taken_the_gradients(
    tapes: type[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, form = nn.Linear(3, 2, bias=False), Curved
    given = Batch(torch.rand(4, 3, 1), torch.zeros(4, dtype=torch.int64), None, Draws(0, torch.arange(4)))
    for _ in range(2):
        found = step(model, square, given, form(model))
    run = Tape.replay

    def stop(tape: Tape) -> None:
        run(tape)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tape, "replay", stop)
    with pytest.raises(KeyboardInterrupt):
        step(model, square, given, form(model))
    with pytest.raises(RuntimeError, match="gradients of this loss are gone"):
        found[0].backward()
