"""Recorded attacks find what unrecorded ones find, with a tape in place of a CUDA graph; what must not be is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from victims import Perceptron

from graph_stand_in import Tape
from resolvent.attacks import APGD, FAB, AttackResult, Square, Threat, Victim, cross_entropy, targeted_dlr
from resolvent.attacks.square import replays
from resolvent.attacks.square.ahead import Ahead
from resolvent.runtime.graph.watched import without_recording

SHAPE = (1, 6, 6)
ATTACKS: dict[str, Any] = {
    "apgd-ce": APGD(cross_entropy, steps=60),
    "apgd-t": APGD(targeted_dlr, steps=60, targets=3),
    "fab-t": FAB(steps=60, targets=3),
    "square": Square(n_queries=1500),
}
SIZES = {"linf": 0.12, "l2": 0.45}


class Faulty(Perceptron):
    """NaN in a corner of the input."""

    def __init__(self) -> None:
        super().__init__(SHAPE, 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, 0, 0, 0] - x[:, 0, 1, 1] > 0.75)[:, None]
        return torch.where(far, torch.nan, super().forward(x))


def case(b: int = 14) -> tuple[nn.Module, Tensor, Tensor]:
    f = Perceptron(SHAPE, 12, 5)
    x = torch.rand(b, *SHAPE, generator=torch.Generator().manual_seed(1))
    return f, x, f(x).argmax(1)


def radii(norm: str, b: int) -> Threat:
    """Some samples break at once, some on the way, some never."""
    return Threat(norm, SIZES[norm] * torch.linspace(0.02, 1.0, b), (0.0, 1.0))  # type: ignore[arg-type]


def agree(found: AttackResult, want: AttackResult) -> None:
    for name in ("success", "queries", "gradients", "zero_gradient", "non_finite"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name
    for name in ("x_adv", "loss", "margin", "norm"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name


@pytest.mark.parametrize("batch_size", [None, 64, 5])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_recorded_attack_finds_the_same(name: str, norm: str, batch_size: int | None, tapes: type[Tape]) -> None:
    f, x, y = case()
    plain, fast, threat = Victim(f, batch_size), Victim(f, batch_size), radii(norm, len(x))
    with without_recording():
        want = ATTACKS[name](plain, x, y, threat)
    assert tapes.made == 0
    assert 0 < int(want.success.sum()) < len(x)
    found = ATTACKS[name](fast, x, y, threat)
    assert tapes.made > 0
    assert tapes.replays > 4
    agree(found, want)
    assert fast.backwards == plain.backwards
    if name == "square":  # how far it looks ahead, and so what is looked at in vain, follows blocks and not passes
        assert int(found.queries.sum()) <= fast.forwards < 1.2 * plain.forwards
    else:
        assert fast.forwards == plain.forwards
    assert fast.recorder is None


@pytest.mark.parametrize("form", ["image", "sequence"])
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_windows_ahead_are_judged_in_their_order(
    depth: int, form: Any, tapes: type[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    f, x, y = case()
    attack, threat = Square(n_queries=400, form=form, restarts=2), radii("linf", len(x))
    if form == "sequence":
        threat = Threat("l1", 4 * threat.eps, (0.0, 1.0), (torch.arange(6) != 2).view(1, 1, 1, 6))
    want = attack(Victim(f), x, y, threat)
    monkeypatch.setattr(replays, "WORTH", 4)
    monkeypatch.setattr(Ahead, "depth", lambda *_: depth)
    made: list[int] = []
    build = replays.Query.__init__

    def note(self: Any, *args: Any) -> None:
        made.append(args[3])
        build(self, *args)

    monkeypatch.setattr(replays.Query, "__init__", note)
    with without_recording():
        plain = attack(Victim(f), x, y, threat)
    assert not made
    victim = Victim(f)
    found = attack(victim, x, y, threat)
    assert set(made) == {depth}
    assert tapes.replays > 400 // (2 * depth)
    agree(found, want)
    agree(plain, want)
    assert victim.forwards >= int(found.queries.sum())


def test_bounds_of_one_attack_are_not_written_to_by_the_next(tapes: type[Tape]) -> None:
    f, x, y = case()
    given = [(torch.full_like(x[:1], -k), torch.full_like(x[:1], 1.0 + k)) for k in (0.0, 1.0)]
    threats = [Threat("linf", radii("linf", len(x)).eps, bounds) for bounds in given]
    with without_recording():
        want = [ATTACKS["fab-t"](Victim(f), x, y, threat) for threat in threats]
    with (victim := Victim(f)).attacked():
        for threat, right in zip(threats, want, strict=True):
            agree(ATTACKS["fab-t"](victim, x, y, threat), right)
    assert tapes.made > 1
    assert [(float(low.max()), float(high.min())) for low, high in given] == [(0.0, 1.0), (-1.0, 2.0)]


def test_outputs_that_are_not_finite_are_marked(tapes: type[Tape]) -> None:
    f, x, y = Faulty(), *case()[1:]
    with without_recording():
        wanted = {name: attack(Victim(f), x, y, radii("linf", len(x))) for name, attack in ATTACKS.items()}
    assert any(bool(want.non_finite.any()) for want in wanted.values())
    for name, want in wanted.items():
        agree(ATTACKS[name](Victim(f), x, y, radii("linf", len(x))), want)
    assert tapes.made > 3
