"""What a model remembers of its recorded steps: a bounded number, the one used longest ago forgotten first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.attacks import Draws
from resolvent.training.step import cuda_graph
from resolvent.training.step.batch import Batch


class Replays(cuda_graph._Recording):
    """A recording of nothing."""

    def __init__(self) -> None:
        self.count = 0

    def replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
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


def step(model: nn.Module, loss: Any, given: Batch | None = None) -> Any:
    return cuda_graph.replay(model, (None, torch.float32), given or batch(), None, loss)


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
