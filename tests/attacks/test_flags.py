"""Reasons for doubt: each is raised by what it names and by nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from victims import BOX, Recurrent, labelled, sequences

from resolvent.attacks import PGD, Threat
from resolvent.attacks.autoattack import flags
from resolvent.attacks.autoattack.attack import autoattack
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.square.attack import Square

QUICK = (PGD(steps=5, stop=True), Square(n_queries=20))


def kinds(raised: tuple[flags.Flag, ...]) -> set[str]:
    return {flag.kind for flag in raised}


class Constant(nn.Module):
    """Says class 0, whatever comes, without any gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.0, -1.0]).expand(x.shape[0], 3)


class Quantised(nn.Module):
    """Gradients are zero almost everywhere, but the model is not robust at all: the classic masked defence."""

    def __init__(self, inner: nn.Module, levels: int = 40) -> None:
        super().__init__()
        self.inner, self.levels = inner, levels

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * self.levels).round() / self.levels)


class Noisy(nn.Module):
    def __init__(self, inner: nn.Module, size: float = 0.05) -> None:
        super().__init__()
        self.inner, self.size = inner, size

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        return logits + self.size * torch.randn_like(logits)


class Chasm(nn.Module):
    """NaN as soon as the input leaves the data."""

    def __init__(self, inner: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.inner, self.total = inner, x.flatten(1).sum(1).max()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        return torch.where(x.flatten(1).sum(1, keepdim=True) > self.total, torch.nan, logits)


def case(n: int = 16) -> tuple[Recurrent, Tensor, Tensor]:
    model = Recurrent()
    x = sequences(n)
    return model, x, labelled(model, x, wrong=0)


def test_an_honest_model_raises_none() -> None:
    model, x, y = case()
    assert evaluate(model, (x, y), BOX, QUICK).flags == ()


def test_a_constant_model_has_zero_gradients_and_no_nan() -> None:
    x = sequences(6)
    result = autoattack(Constant(), x, torch.zeros(6, dtype=torch.int64), BOX, (PGD(steps=3), Square(n_queries=5)))
    assert result.accuracy == 1.0
    (flag,) = result.flags
    assert (flag.kind, flag.samples, flag.value) == ("zero_gradients", 6, 1.0)
    assert torch.isfinite(result.x_adv).all()
    assert torch.isfinite(result.margin).all()


def test_a_quantised_model_is_seen_through() -> None:
    """Square breaks what PGD cannot move; a larger ball does not help PGD; points of the bare model do."""
    model, x, y = case()
    threat = Threat("linf", 0.2, bounds=(0.0, 1.0))
    seen = evaluate(Quantised(model), (x, y), threat, (PGD(steps=5, stop=True), Square(n_queries=200)), surrogate=model)
    assert {"zero_gradients", "square_wins", "transfer_wins"} <= kinds(seen.flags)
    square = next(flag for flag in seen.flags if flag.kind == "square_wins")
    table = seen.result.table
    assert square.value == pytest.approx(table["pgd-5"] - table["square"])


def test_a_larger_ball_that_does_not_help() -> None:
    x = sequences(6)
    seen = evaluate(Constant(), (x, torch.zeros(6, dtype=torch.int64)), BOX, (PGD(steps=2),))
    assert "larger_eps" in kinds(seen.flags)
    none = EvaluationSettings(probe=0)
    off = evaluate(Constant(), (x, torch.zeros(6, dtype=torch.int64)), BOX, (PGD(steps=2),), settings=none)
    assert "larger_eps" not in kinds(off.flags)


def test_a_ball_of_no_size_has_no_larger_one() -> None:
    model, x, y = case(6)
    assert evaluate(model, (x, y), Threat("linf", 0.0), QUICK).flags == ()


def test_samples_that_nobody_may_touch_miss_no_gradient() -> None:
    from resolvent.attacks import APGD, FAB

    model, x, y = case(6)
    threat = Threat("linf", 0.01, (0.0, 1.0), mask=torch.arange(6) > 2)
    result = autoattack(model, x, y, threat, (PGD(steps=2), APGD(steps=2), FAB(steps=2)))
    assert result.flags == ()
    assert torch.equal(result.x_adv[:3], x[:3])


def test_a_random_model_is_named_and_does_not_stop_the_run() -> None:
    model, x, y = case()
    result = autoattack(Noisy(model), x, y, BOX, QUICK)
    assert "random_outputs" in kinds(result.flags)
    assert "preset='rand'" in next(f.explanation for f in result.flags if f.kind == "random_outputs")


def test_nan_nearby_is_a_flag_and_never_a_success() -> None:
    model, x, y = case()
    result = autoattack(Chasm(model, x), x, y, BOX, QUICK)
    assert "non_finite" in kinds(result.flags)
    assert torch.isfinite(result.margin).all()


def test_too_few_classes_for_dlr_are_told() -> None:
    from resolvent.attacks import APGD, dlr, targeted_dlr

    model = Recurrent(classes=2)
    x = sequences(8)
    y = labelled(model, x, wrong=0)
    result = autoattack(model, x, y, BOX, (APGD(dlr, steps=3), APGD(targeted_dlr, steps=3, targets=9)))
    assert len(result.notes) == 2
    assert all("2" in line for line in result.notes)
    assert "replaced_loss" not in kinds(result.flags)
    assert "note: DLR needs at least 3 classes" in str(result)


def test_three_classes_are_no_reason_for_doubt() -> None:
    """Targeted DLR is not defined there: a note, which neither a result nor a curve or record counts as a flag."""
    from resolvent.attacks import evaluate

    model = Recurrent(classes=3)
    x = sequences(12)
    data = x, labelled(model, x, wrong=0)
    found = evaluate(model, data, BOX, "fast")
    assert "needs at least 4 classes" in found.to_dict()["notes"][0]
    assert found.to_dict()["flags"] == []
    curve = str(evaluate(model, data, BOX, "fast", eps=[0.01, 0.02]))
    assert curve.count("note: Targeted DLR") == 1
    assert curve.endswith("no flags")
    masked = evaluate(lambda x: model(x.round()), data, BOX, "fast")  # a true doubt still is one
    assert "zero_gradients" in kinds(masked.flags)


@pytest.mark.parametrize(
    ("table", "raised"),
    [
        ({"clean": 1.0, "apgd-ce": 0.5, "square": 0.497}, True),
        ({"clean": 1.0, "apgd-ce": 0.5, "square": 0.4985}, False),
        ({"clean": 1.0, "square": 0.1}, False),  # nothing white-box to compare with
        ({"clean": 1.0, "apgd-ce": 0.5}, False),
        ({"clean": 1.0, "apgd-ce": 0.5, "square": 0.4, "apgd-t": 0.3}, True),
    ],
)
def test_square_against_white_box(table: dict[str, float], raised: bool) -> None:
    assert (flags.square_wins(table, 20_000) is not None) == raised


@pytest.mark.parametrize(("broken", "n", "raised"), [(1, 64, False), (2, 64, False), (6, 64, True), (1, 128, False),
                                                     (30, 128, True), (3, 1000, False), (12, 1000, True)])  # fmt: skip
def test_a_few_samples_raise_no_flag(broken: int, n: int, raised: bool) -> None:
    """Against the exact binomial: a flag is raised only where 0.2 points explain so many with less than 5 %."""
    from scipy.stats import binom

    share = broken / n
    table = {"clean": 1.0, "apgd-ce": 0.5, "square": 0.5 - share}
    found = (flags.square_wins(table, n), flags.transfer_wins(0.5 + share, 0.5, n), flags.borderline(broken, n))
    assert [flag is not None for flag in found] == [raised] * 3
    chance = binom.sf(broken - 1, n, flags.SQUARE_POINTS)  # of so many or more
    assert not raised or chance < 0.05


def test_larger_eps_needs_something_standing() -> None:
    assert flags.larger_eps(0.0, 0.0, 8, 64) is None
    assert flags.larger_eps(0.5, 0.4, 8, 64) is None
    assert flags.larger_eps(0.5, 0.5, 8, 64) is not None
    assert flags.larger_eps(2 / 64, 2 / 64, 8, 64) is None  # two samples decide nothing


def test_softmax_is_told_from_logits() -> None:
    logits = torch.randn(5, 4)
    assert flags.softmax_outputs(logits.softmax(1)) is not None
    assert flags.softmax_outputs(logits) is None
    assert flags.softmax_outputs(logits.log_softmax(1)) is None


def test_transfer_by_a_hair_is_none() -> None:
    assert flags.transfer_wins(0.501, 0.5, 10_000) is None
    assert flags.transfer_wins(0.51, 0.5, 10_000) is not None


def test_no_right_answer_at_all_is_flagged() -> None:
    """Labels that count from 1 look like a model that any attack breaks."""
    x, y = torch.zeros(8, 4, 1), torch.zeros(8, dtype=torch.long)
    box = Threat("linf", 0.1, bounds=(0, 1))
    wrong = autoattack(Constant(), x, y + 1, box, QUICK)
    assert "nothing_right" in kinds(wrong.flags)
    assert "count from 0" in str(wrong)
    assert "nothing_right" not in kinds(autoattack(Constant(), x, y, box, QUICK).flags)
    assert "nothing_right" not in kinds(autoattack(Constant(), x[:7], y[:7] + 1, box, QUICK).flags)
