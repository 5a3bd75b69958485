"""APGD against pyautoattack on a trained classifier; its step rule, targets, restarts and stages by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from image_victim import images, trained
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import APGD, Draws, Threat, Victim, cross_entropy, dlr, targeted_dlr
from resolvent.attacks.apgd.attack import _rounds, _stages
from resolvent.attacks.apgd.rule import halving, sparsity
from resolvent.attacks.objective.objective import rank_wrong_classes
from resolvent.attacks.rows import prepare

PARITY = {"linf": ("Linf", 0.05), "l2": ("L2", 0.5), "l1": ("L1", 4.0)}


def theirs(norm: str, targeted: bool = False, **options: Any) -> Any:
    base = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack comes with the parity extra")
    name, eps = PARITY[norm]
    kind = base.APGDAttack_targeted if targeted else base.APGDAttack
    return kind(trained(), norm=name, eps=eps, device="cpu", use_largereps=norm == "l1", **options)


def accuracy(x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((trained()(x).argmax(1) == y).double().mean())


def compare_accuracy(norm: Any, attack: APGD, n: int, slack: float) -> float:
    """Never weaker by more than the slack; being stronger than the reference is no fault. Returns the difference."""
    x, y = images(n, 5)
    threat = Threat(norm, PARITY[norm][1], (0.0, 1.0))
    found = attack(trained(), x, y, threat)
    reference = theirs(norm, bool(attack.targets), n_iter=attack.steps).perturb(x, y)
    mine, want = accuracy(found.x_adv, y), accuracy(reference, y)
    assert 0.05 < want < 0.95  # an attack that breaks all or nothing compares nothing
    assert mine <= want + slack
    assert threat.contains(found.x_adv, x).all()
    assert torch.equal(found.success, trained()(found.x_adv).argmax(1) != y)
    return mine - want


# One sample of 200 is 0.5 points.
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_accuracy_is_the_reference_packages(norm: str) -> None:
    compare_accuracy(norm, APGD(), 200, 0.005)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_targeted_accuracy_is_the_reference_packages(norm: str) -> None:
    compare_accuracy(norm, APGD(targeted_dlr, steps=20, targets=9), 100, 0.01)  # one sample of 100


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_dlr_on_a_thousand(norm: str) -> None:
    x, y = images(1000, 5)
    threat = Threat(norm, PARITY[norm][1], (0.0, 1.0))  # type: ignore[arg-type]
    mine = accuracy(APGD(dlr)(trained(), x, y, threat).x_adv, y)
    assert mine <= accuracy(theirs(norm, loss="dlr").perturb(x, y), y) + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("attack", [APGD(), APGD(targeted_dlr, targets=9)], ids=lambda a: a.name)
def test_l1_on_a_thousand(attack: APGD) -> None:
    """The reference itself moved by 1.7 points between seeds (three seeds, 300 samples)."""
    compare_accuracy("l1", attack, 1000, 0.015)


def mean_losses(norm: Any, n: int, seeds: int) -> tuple[Tensor, Tensor]:
    x, y = images(n, 6)
    threat = Threat(norm, PARITY[norm][1], (0.0, 1.0))
    mine, want = [], []
    for seed in range(seeds):
        found = APGD(stop=False)(trained(), x, y, threat, draws=Draws.of(x, seed))
        assert_close(
            found.loss, cross_entropy(trained()(found.x_adv), y).detach(), tolerance=1e-4
        )  # the same float32 sums
        mine.append(found.loss.mean())
        with torch.no_grad():
            want.append(cross_entropy(trained()(theirs(norm, seed=seed).perturb(x, y, best_loss=True)), y).mean())
    return torch.stack(mine), torch.stack(want)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_loss_reaches_the_reference_packages(norm: str) -> None:
    """Both maximise from random starts, so the mean over the samples scatters by about 1 % between seeds."""
    mine, want = mean_losses(norm, 60, 1)
    assert mine.mean() >= want.mean() * 0.985


def rows_of(n: int, norm: Any = "linf") -> Any:
    x = torch.zeros(n, 50)
    return prepare(lambda x: x, x, torch.zeros(n, dtype=torch.int64), Threat(norm, 1.0), None)[1]


def test_checkpoints_of_the_paper() -> None:
    """w_j for 100 iterations: 0, 22, 41, 57, 70, 80, 87, 93, 99 (gaps 22, 19, 16, 13, 10, 7, 6, 6)."""
    rule = halving(rows_of(1), torch.zeros(1), 100, 0.75, 0.75)
    checks = []
    for i in range(100):
        if rule.update(torch.tensor([True]), torch.tensor([float(i)]), *[torch.zeros(1, 50)] * 2) is not None:
            checks.append(i + 1)
    assert checks == [22, 41, 57, 70, 80, 87, 93, 99]
    assert float(rule.step) == 2.0  # always rising: never halved


def test_halving_conditions() -> None:
    rule = halving(rows_of(4), torch.zeros(4), 100, 0.75, 0.75)
    best = torch.zeros(4)
    rising = torch.tensor([1.0, 0.5, 1.0, 1.0])  # share of steps in which the loss rises
    for i in range(22):
        best = best + torch.tensor([1.0, 1.0, 0.0, 1.0])
        cut = rule.update(i < rising * 22, best, *[torch.zeros(4, 50)] * 2)
    assert cut is not None
    assert cut.tolist() == [False, True, False, False]  # 2 has not improved, but no checkpoint came before
    for i in range(19):
        best = best + torch.tensor([1.0, 0.0, 0.0, 1.0])
        cut = rule.update(torch.tensor([True, True, True, i < 14]), best, *[torch.zeros(4, 50)] * 2)
    # 1 was halved last time and is spared; 2 stood still; 3 rose in 14 of 19 < 0.75.
    assert cut is not None
    assert cut.tolist() == [False, False, True, True]
    assert rule.step.flatten().tolist() == [2.0, 1.0, 1.0, 1.0]


def test_sparsity_follows_the_best_points_support() -> None:
    rows = rows_of(2, "l1")
    rule = sparsity(rows, rows.x, 25, warm=False)
    assert rule.share.tolist() == [pytest.approx(0.2)] * 2
    delta = torch.zeros(2, 50)
    delta[0, :30] = 1.0
    delta[1, :49] = 1.0
    back = rule.update(torch.tensor([True, True]), torch.zeros(2), delta, torch.zeros_like(delta))
    assert back is not None
    assert back.tolist() == [True, False]  # 30 of 50 is fewer than 0.95 * 50; 49 is not
    assert rule.share.tolist() == [pytest.approx(30 / 75), pytest.approx(49 / 75)]
    assert rule.step.flatten().tolist() == [1.0, pytest.approx(1 / 1.5)]
    for _ in range(20):
        rule.update(torch.tensor([True, True]), torch.zeros(2), delta, torch.zeros_like(delta))
    assert rule.step.flatten().tolist() == [pytest.approx(0.1)] * 2


def test_stages_spend_the_given_steps() -> None:
    l1, l2 = Threat("l1", 1.0), Threat("l2", 1.0)
    assert _stages(APGD(), l1) == [(3.0, 30), (2.0, 30), (1.0, 40)]
    assert _stages(APGD(steps=7), l1) == [(3.0, 3), (2.0, 3), (1.0, 1)]
    assert _stages(APGD(steps=2), l1) == [(1.0, 2)]
    assert _stages(APGD(larger_eps=False), l1) == _stages(APGD(), l2) == [(1.0, 100)]


def test_targets_follow_the_clean_logits_and_the_class_count() -> None:
    z = torch.tensor([[5.0, 1.0, 3.0, 2.0], [0.0, 9.0, -torch.inf, torch.nan]])
    assert rank_wrong_classes(z, torch.tensor([0, 1])).tolist() == [[2, 3, 1], [0, 2, 3]]
    every = [rank for _, ranks in _rounds(APGD(targeted_dlr, targets=9, at_once=4), 10) for rank in ranks]
    assert every == list(range(1, 10))
    assert [ranks for _, ranks in _rounds(APGD(targeted_dlr, targets=9), 4)] == [(1,), (2, 3)]
    assert [r for r, _ in _rounds(APGD(restarts=3), 4)] == [0, 1, 2]


@pytest.mark.parametrize(
    "at_once", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(8, marks=pytest.mark.slow)]
)
def test_targets_side_by_side_break_what_targets_in_turn_break(at_once: int) -> None:
    x, y = images(40, 8)
    threat = Threat("linf", 0.05, (0.0, 1.0))
    side = APGD(targeted_dlr, steps=15, targets=9, at_once=at_once)(trained(), x, y, threat)
    turn = APGD(targeted_dlr, steps=15, targets=9, at_once=1)(trained(), x, y, threat)
    assert torch.equal(side.success, turn.success)
    robust = ~turn.success
    assert torch.equal(side.queries[robust], turn.queries[robust])
    assert (side.queries[robust] == 1 + 9 * 16).all()


def test_broken_samples_cost_nothing_more() -> None:
    x, y = images(60, 9)
    victim = Victim(trained(), batch_size=50)
    found = APGD(steps=40)(victim, x, y, Threat("linf", 0.08, (0.0, 1.0)))
    assert found.success.any()
    assert (found.queries[~found.success] == 42).all()  # clean, start, 40 steps
    assert found.queries[found.success].double().mean() < 21
    assert victim.forwards == int(found.queries.sum())
    spared = APGD(steps=40)(trained(), x, y, Threat("linf", 0.08, (0.0, 1.0)), clean_logits=trained()(x).detach())
    assert torch.equal(spared.queries, found.queries - 1)


def test_samples_wrong_from_the_start_are_left_alone() -> None:
    x, _ = images(10, 10)
    wrong = (trained()(x).argmax(1) + 1) % 10
    for attack in (APGD(steps=5), APGD(targeted_dlr, steps=5, targets=3)):
        found = attack(trained(), x, wrong, Threat("l2", 0.5, (0.0, 1.0)))
        assert torch.equal(found.x_adv, x)
        assert found.success.all()
        assert found.queries.tolist() == [1] * 10


def test_sequences_with_lengths() -> None:
    """(b, l, d) input, which the reference package cannot evaluate; padding stays untouched."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20 * 3, 32), nn.ReLU(), nn.Linear(32, 5))
    x = torch.randn(12, 20, 3)
    with torch.no_grad():
        y = model(x).argmax(1)
    lengths = torch.arange(1, 13)
    for norm, eps in (("linf", 0.3), ("l2", 1.5), ("l1", 6.0)):
        threat = Threat(norm, eps).with_lengths(lengths, 20)  # type: ignore[arg-type]
        found = APGD(steps=20)(model, x, y, threat)
        assert threat.contains(found.x_adv, x).all()
        changed = (found.x_adv != x).any(-1)
        assert not (changed & (torch.arange(20) >= lengths[:, None])).any()
        assert found.success.any()
