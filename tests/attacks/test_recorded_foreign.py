"""Somebody's models that must not be recorded are not, see no pass but their own, and are told of once."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_recorded_attacks import ATTACKS, SHAPE, agree, radii
from torch import Tensor, nn
from victims import Perceptron

from graph_stand_in import Tape
from resolvent.attacks import PGD, Draws, Threat, Victim
from resolvent.attacks.recorded import passes, recorder
from resolvent.runtime.graph.watched import without_recording
from resolvent.runtime.memory import give_up_kept

SEEN: list[int] = []


class Foreign(Perceptron):
    def __init__(self) -> None:
        super().__init__(SHAPE, 12, 5)
        self.calls, self.notes, self.drop = 0, dict[str, Any](), nn.Dropout(0.5)


class Counts(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 1e-3 * (self.calls % 7))


class Remembers(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        self.notes["last"] = x.shape[0] + self.notes.get("last", 0) % 1000
        return super().forward(x) + 1e-3 * (self.notes["last"] % 5)


class CountsElsewhere(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        return super().forward(x) * (1 + 1e-3 * (len(SEEN) % 7))


class CountsInItsClass(Foreign):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).count += 1
        return super().forward(x) * (1 + 1e-3 * (self.count % 7))


class WritesABuffer(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passed", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passed += 1
        return super().forward(x) * (1 + 1e-3 * (self.passed % 7))


class Drops(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 1e-4, training=True))


class StaysInTraining(Foreign):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.drop.training = True
        return self

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.drop(x))


class Rolls(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 1e-2 * random.random() + 1e-2 * float(np.random.rand()))


class Items(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / (1.0 + 0.0 * x.abs().sum().item())


class Branches(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if bool((x >= -1).all()) else super().forward(2 * x)


class Selects(Foreign):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y[y > 1e6] = 1e6
        return y + y[y.sum(1) > -1e9] * 0


class OwnGenerator(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.05 * torch.randn(len(x), 5, generator=self.generator).to(x.device)


class Averages(Foreign):
    """As a batch norm in training does, whose averages keep their version."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(36))
        self.register_buffer("spread", torch.ones(36))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x, -x]).detach().flatten(1)
        F.batch_norm(both, self.mean, self.spread, training=True)
        return super().forward(x)


class Beside(Foreign):
    """What it says of a sample hangs on the others, as in a batch norm without averages."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - 0.2 * x.mean(0))


class FixedBatch(Foreign):
    """Of a size to which a recording would round up."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 24:
            raise ValueError("at most 24 samples")
        return super().forward(x)


def hooked() -> nn.Module:
    f = Foreign()
    f.drop.register_forward_pre_hook(lambda *_: None)
    return f


def scattered() -> nn.Module:
    return nn.DataParallel(Foreign())


def own_samples(b: int = 14) -> tuple[Tensor, Tensor]:
    x = torch.rand(b, *SHAPE, generator=torch.Generator().manual_seed(1))
    return x, Perceptron(SHAPE, 12, 5)(x).argmax(1)


def attack(make: Callable[[], nn.Module], name: str, b: int = 14, device: str = "cpu") -> Any:
    """What is found, and what the model and the generators have come to."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    SEEN.clear()
    CountsInItsClass.count = 0
    f = make()
    victim, (x, y), threat = Victim(f), own_samples(b), radii("linf", b)
    found = ATTACKS[name](victim, x.to(device), y.to(device), threat)
    state = dict(vars(f)) if isinstance(f, Foreign) else {}
    left = state.get("calls"), state.get("notes"), list(SEEN), CountsInItsClass.count, [b.tolist() for b in f.buffers()]
    drawn = torch.rand(3).tolist(), random.random(), np.random.rand()
    return found, (victim.forwards, victim.backwards), left, drawn


SILENT = {"hooked": hooked, "scattered": scattered, "stays in training": StaysInTraining}
TOUCHED = {
    "counts": Counts, "remembers": Remembers, "counts elsewhere": CountsElsewhere, "in its class": CountsInItsClass,
    "writes a buffer": WritesABuffer, "drops": Drops, "rolls": Rolls, "own generator": OwnGenerator,
    "averages": Averages,
}  # fmt: skip
TRIED = {"items": Items, "branches": Branches, "selects": Selects, "beside": Beside}


@pytest.mark.parametrize("name", ["apgd-ce", "square", "fab-t"])
@pytest.mark.parametrize("kind", [*SILENT, *TOUCHED, *TRIED])
def test_it_runs_as_ever(kind: str, name: str, tapes: type[Tape], caplog: pytest.LogCaptureFixture) -> None:
    make: Any = (SILENT | TOUCHED | TRIED)[kind]
    with without_recording():
        want = attack(make, name)
    with caplog.at_level(logging.WARNING):
        found = attack(make, name)
    assert tapes.replays == 0
    agree(found[0], want[0])
    assert found[1:] == want[1:]  # counts, what the model remembers, random numbers
    lines = [r.message for r in caplog.records if "cannot be recorded" in r.message]
    assert len(lines) == (kind not in SILENT)
    assert tapes.made == 0


@pytest.mark.parametrize("b", [2, 3, 37])
def test_batches_that_fill_a_recording_in_part(b: int, tapes: type[Tape]) -> None:
    """Square keeps broken samples in the batch until a block of queries ends, and rounds batches up."""
    with without_recording():
        want = attack(Beside, "square", b)
    agree(attack(Beside, "square", b)[0], want[0])
    assert tapes.replays == 0


def test_a_model_that_refuses_a_larger_batch_is_left_alone(tapes: type[Tape]) -> None:
    with without_recording():
        want = attack(FixedBatch, "apgd-ce", 23)
    found = attack(FixedBatch, "apgd-ce", 23)
    agree(found[0], want[0])
    assert found[1] == want[1]


def test_an_error_of_the_model_is_the_users(tapes: type[Tape]) -> None:
    with pytest.raises(ValueError, match="at most 24 samples"):
        attack(FixedBatch, "apgd-ce", 30)


def test_what_failed_once_is_not_tried_again(tapes: type[Tape], caplog: pytest.LogCaptureFixture) -> None:
    f, (x, y) = Items(), own_samples()
    with caplog.at_level(logging.WARNING):
        for name in ("apgd-ce", "square", "apgd-ce"):
            ATTACKS[name](f, x, y, radii("linf", len(x)))
    assert caplog.text.count("cannot be recorded") == 1


def test_a_function_is_not_recorded(tapes: type[Tape]) -> None:
    f, (x, y) = Foreign().eval(), own_samples()
    ATTACKS["square"](lambda v: f(v), x, y, radii("linf", len(x)))
    assert tapes.made == 0


def test_a_short_attack_looks_at_nothing(tapes: type[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a training step, which makes one for every batch."""
    monkeypatch.setattr(recorder, "read_all", lambda *_: pytest.fail("looked at"))
    x, y = own_samples()
    PGD(steps=recorder.QUIET - 2)(Foreign(), x, y, radii("linf", len(x)))
    assert tapes.made == 0


def test_weights_that_change_between_attacks_are_seen(tapes: type[Tape]) -> None:
    f, (x, y) = Foreign(), own_samples()
    victim, threat = Victim(f), radii("linf", len(x))
    with victim.attacked():
        ATTACKS["square"](victim, x, y, threat)
        made = tapes.made
        f.first.data = f.first.data * 1.01  # to another place
        found = ATTACKS["square"](victim, x, y, threat)
    assert tapes.made > made
    with without_recording():
        agree(found, ATTACKS["square"](f, x, y, threat))


def test_threads_that_share_a_victim_do_not_share_places(tapes: type[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole attack of another thread in the middle of one."""
    f, (x, y) = Foreign(), own_samples()
    turned, victim, run, found = x.flip(3), Victim(f), Tape.replay, list[Any]()
    threat = Threat("linf", 1e-3, (0.0, 1.0))  # which breaks none, so that both are of one size
    with without_recording():
        want = [ATTACKS["fab-t"](f, *part, threat) for part in ((turned, f(turned).argmax(1)), (x, y))]

    def other() -> None:
        found.append(ATTACKS["fab-t"](victim, turned, f(turned).argmax(1), threat))

    def replay(tape: Tape) -> None:
        run(tape)
        if not recorder.recording and tapes.replays > 20 and not threads:
            threads.append(threading.Thread(target=other))
            threads[0].start()
            threads[0].join()

    threads: list[threading.Thread] = []
    monkeypatch.setattr(Tape, "replay", replay)
    with victim.attacked():
        found.append(ATTACKS["fab-t"](victim, x, y, threat))
    assert len(threads) == 1
    for one, right in zip(found, want, strict=True):
        agree(one, right)


def test_a_hook_that_comes_between_attacks_is_seen(tapes: type[Tape]) -> None:
    f, (x, y), seen = Foreign(), own_samples(), list[int]()
    victim, threat = Victim(f), radii("linf", len(x))
    with victim.attacked():
        want = ATTACKS["square"](victim, x, y, threat)
        made, replays = tapes.made, tapes.replays
        f.register_forward_hook(lambda *_: seen.append(1))
        agree(ATTACKS["square"](victim, x, y, threat), want)
    assert (tapes.made, tapes.replays) == (made, replays)
    assert len(seen) > 100


def test_no_memory_for_a_recording(
    tapes: type[Tape], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    with without_recording():
        want = attack(Foreign, "apgd-ce")
    monkeypatch.setattr(passes.Pass, "__init__", fill)
    found = attack(Foreign, "apgd-ce")
    agree(found[0], want[0])
    assert found[1:] == want[1:]
    assert caplog.text.count("cannot be recorded as a CUDA graph, and runs without one: out of memory") == 1


def test_memory_that_runs_out_takes_the_recordings(tapes: type[Tape], caplog: pytest.LogCaptureFixture) -> None:
    f, (x, y) = Foreign(), own_samples()
    victim, threat = Victim(f), radii("linf", len(x))
    with victim.attacked():
        want = ATTACKS["square"](victim, x, y, threat)
        assert give_up_kept()
        assert not give_up_kept()
        made, replays = tapes.made, tapes.replays
        agree(ATTACKS["square"](victim, x, y, threat), want)
    assert (tapes.made, tapes.replays) == (made, replays)
    assert "out of memory: the recorded passes" in caplog.text


def test_a_replay_that_gives_other_numbers_is_not_used(
    tapes: type[Tape], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Still(Tape):
        def replay(self) -> None:
            pass

    monkeypatch.setitem(recorder.GRAPHS, "cpu", Still)
    with without_recording():
        want = attack(Foreign, "square")
    found = attack(Foreign, "square")
    agree(found[0], want[0])
    assert found[1:] == want[1:]
    assert "its replay gives other numbers" in caplog.text


def test_a_sample_finds_the_same_in_any_company(tapes: type[Tape]) -> None:
    f, (x, y) = Foreign(), own_samples()
    threat, draws = radii("linf", len(x)), Draws.of(x)
    rows = torch.tensor([2, 5, 6, 11])
    for attack in ATTACKS.values():
        whole = attack(Victim(f), x, y, threat)
        part = attack(Victim(f, 3), x[rows], y[rows], threat.check(x).select(rows), draws=draws.select(rows))
        for name in ("x_adv", "success", "queries", "loss"):
            assert torch.equal(getattr(whole, name)[rows], getattr(part, name)), name
    assert tapes.made > 4
