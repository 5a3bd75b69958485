"""Looking ahead changes nothing: the same bits and counts as one query after the other, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from resolvent.attacks import AttackResult, Draws, Threat, Victim, margin
from resolvent.attacks.square.ahead import Ahead
from resolvent.attacks.square.attack import Square
from resolvent.attacks.square.deck import _STREAM, Deck
from resolvent.attacks.square.layout import layout_of
from resolvent.attacks.square.step import step_for
from resolvent.attacks.threat.threat import Norm

NORMS: dict[Norm, float] = {"linf": 0.12, "l2": 0.45, "l1": 1.2}
SHAPES = [(2, 6, 6), (12, 3), (9,)]


def model(shape: tuple[int, ...], classes: int = 4) -> Callable[[Tensor], Tensor]:
    """Row by row, so that the company a sample keeps does not show in its outputs."""
    n = int(torch.tensor(shape).prod())
    g = torch.Generator().manual_seed(0)
    first = torch.randn(n, 16, generator=g).double() / n**0.5
    last = torch.randn(16, classes, generator=g).double()

    def f(x: Tensor) -> Tensor:
        hidden = ((x.flatten(1).double() - 0.5)[:, :, None] * first).sum(1)
        return (torch.tanh(3 * hidden)[:, :, None] * last).sum(1)

    return f


def case(shape: tuple[int, ...], b: int) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    f = model(shape)
    x = torch.rand(b, *shape, generator=torch.Generator().manual_seed(1))
    return f, x, f(x).argmax(1)


def one_by_one(
    attack: Square, f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, threat: Threat
) -> dict[str, Tensor]:
    """Algorithm 1 of Andriushchenko et al. 2020 as a plain loop over samples and queries."""
    record: dict[str, list[Tensor]] = {"x_adv": [], "success": [], "queries": [], "non_finite": []}
    for i in range(len(x)):
        draws = Draws(0, torch.tensor([i])).fold("square").fold(0)
        fitted = threat.check(x).select(torch.tensor([i]))
        layout = layout_of(x[i : i + 1])
        step, deck = step_for(x[i : i + 1], fitted, layout), Deck(draws, layout.width)
        best, top, bad, queries = step.first(draws), torch.tensor([-torch.inf]), False, 0
        wrong, start = False, margin(f(x[i : i + 1]), y[i : i + 1])
        while queries < attack.n_queries and not wrong:
            u = draws.uniform(_STREAM, queries // deck.size, (deck.size, layout.width))[:, queries % deck.size]
            trial = step.next(best, attack.share(queries - 1), u) if queries else best
            logits = f(trial.view(1, *x.shape[1:]))
            queries += 1
            if not bool(torch.isfinite(logits).all()):
                bad = True
                continue
            wrong = bool(logits.argmax() != y[i])
            loss = margin(logits, y[i : i + 1])
            if wrong or bool(loss > top):
                best, top = trial, loss.to(x.dtype)
        record["x_adv"].append(best[0].view(x.shape[1:]) if wrong or bool(top > start.to(x.dtype)) else x[i])
        record["success"].append(torch.tensor(wrong))
        record["queries"].append(torch.tensor(queries + 1))
        record["non_finite"].append(torch.tensor(bad))
    return {name: torch.stack(values) for name, values in record.items()}


def agree(found: AttackResult, want: dict[str, Tensor]) -> None:
    for name, value in want.items():
        assert torch.equal(getattr(found, name), value), name


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_bits_as_one_query_after_the_other(norm: Norm, shape: tuple[int, ...]) -> None:
    f, x, y = case(shape, 8)
    radii = NORMS[norm] * torch.linspace(0.05, 1.0, 8)  # some break, some stand
    threat, attack = Threat(norm, radii, (0.0, 1.0)), Square(n_queries=160)
    want = one_by_one(attack, f, x, y, threat)
    assert 0 < int(want["success"].sum()) < 8
    passes = Passes(f)
    agree(attack(Victim(passes, 64), x, y, threat), want)
    assert passes.calls < 110
    agree(attack(f, x, y, threat), want)
    agree(attack(Victim(f, 3), x, y, threat), want)


@pytest.mark.parametrize("depth", [2, 7, 100])
def test_any_depth_gives_the_same(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x, y = case((12, 3), 8)
    threat, attack = Threat("linf", NORMS["linf"], (0.0, 1.0)), Square(n_queries=90, restarts=2)
    monkeypatch.setattr(Ahead, "depth", lambda *_: 1)
    plain, counted = Victim(f), Victim(f)
    want = attack(plain, x, y, threat)
    assert plain.forwards == int(want.queries.sum())
    monkeypatch.setattr(Ahead, "depth", lambda *_: depth)
    found = attack(counted, x, y, threat)
    for name in ("x_adv", "success", "loss", "margin", "queries", "non_finite"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name
    assert counted.forwards > plain.forwards


def test_an_output_that_is_not_finite_is_told_only_of_windows_that_count() -> None:
    f, x, _ = case((12, 3), 8)
    x = x.clamp(0.2, 0.7)
    y = f(x).argmax(1)
    threat, attack = Threat("linf", NORMS["linf"], (0.0, 1.0)), Square(n_queries=120)

    def faulty(z: Tensor) -> Tensor:
        return torch.where((z[:, 0, 0] > z[:, 1, 1] + 0.6)[:, None], torch.nan, f(z))

    want = one_by_one(attack, faulty, x, y, threat)
    assert 0 < int(want["non_finite"].sum()) < 8
    agree(attack(Victim(faulty, 64), x, y, threat), want)


def test_no_pass_exceeds_the_batch_size() -> None:
    f, x, y = case((9,), 6)
    for most in (1, 4, 40):
        passes = Passes(f)
        Square(n_queries=200)(Victim(passes, most), x, y, Threat("linf", 0.02))
        assert passes.largest <= most
    passes = Passes(f)
    Square(n_queries=200)(passes, x, y, Threat("linf", 0.02))
    assert passes.largest <= len(x)  # without a batch size: what the caller's own batch shows to fit


def test_depth_follows_acceptance_and_samples() -> None:
    ahead = Ahead(64)
    assert ahead.depth(1) == ahead.depth(200) == 1  # nothing is known yet
    for _ in range(100):
        ahead.learn(0, 10)
    assert ahead.depth(1) > 8
    assert ahead.depth(1) >= ahead.depth(8) >= ahead.depth(40) >= ahead.depth(200) == 1
    assert 8 * ahead.depth(8) <= 64
    for _ in range(100):
        ahead.learn(5, 10)
    assert ahead.depth(1) == 1


class Passes:
    """Counts calls and the rows of the largest one."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f, self.calls, self.largest = f, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls, self.largest = self.calls + 1, max(self.largest, len(x))
        return self.f(x)
