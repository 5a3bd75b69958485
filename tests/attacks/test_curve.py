"""Several sizes in one evaluation: the curve never rises, shares its work, and tells what a time limit left open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_channels import Padded, assert_obeys
from torch import Tensor
from victims import BOX, Recurrent, labelled, sequences

from resolvent.attacks import APGD, PGD, Curve, EvaluationSettings, Square, Threat, Victim, evaluate
from resolvent.attacks.autoattack import rounds
from resolvent.attacks.autoattack.curve import ascending
from resolvent.attacks.result import AttackResult

QUICK = (PGD(steps=4, stop=True), Square(n_queries=12))
SMALL = EvaluationSettings(batch_size=5, probe=0)
SIZES = [0.08, 0.01, 0.04, 0.02, 0.02]


def case(n: int = 16) -> tuple[Recurrent, Tensor, Tensor]:
    model, x = Recurrent(), sequences(n)
    return model, x, labelled(model, x)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_curve_falls_and_agrees_with_single_evaluations(norm: Any) -> None:
    model, x, y = case()
    factor = {"linf": 1.0, "l2": 4.0, "l1": 12.0}[norm]
    sizes = [factor * size for size in SIZES]
    curve = evaluate(model, (x, y), Threat(norm, 0.0, (0.0, 1.0)), QUICK, eps=sizes, settings=SMALL)
    assert curve.eps == tuple(sorted(set(sizes)))
    assert list(curve.accuracy) == sorted(curve.accuracy, reverse=True)
    assert curve.accuracy[0] > curve.accuracy[-1]
    ever = torch.zeros(len(x), dtype=torch.bool)
    for eps, point in zip(curve.eps, curve.evaluations, strict=True):
        alone = evaluate(model, (x, y), Threat(norm, eps, (0.0, 1.0)), QUICK, settings=SMALL).result
        ever |= ~alone.robust
        assert torch.equal(point.result.robust, ~ever)  # broken here, or in a smaller ball
        assert_obeys(point.result.x_adv, x, eps * (1 + 1e-6), norm, (0.0, 1.0))
        with torch.no_grad():
            right = model.eval()(point.result.x_adv).argmax(1) == y
        assert torch.equal(point.result.robust, right)
        assert point.bracket == (point.accuracy, point.accuracy)


def test_what_is_broken_once_is_not_attacked_again() -> None:
    model, x, y = case()
    seen = []

    class Counted(PGD):
        def __call__(self, f: Any, x: Tensor, *args: Any, **named: Any) -> AttackResult:
            seen.append(len(x))
            return super().__call__(f, x, *args, **named)

    settings = EvaluationSettings(probe=0)
    curve = evaluate(model, (x, y), BOX, (Counted(steps=3),), eps=[0.01, 0.05, 0.1], settings=settings)
    stood = [round(a * len(x)) for a in (curve.clean_accuracy, *curve.accuracy)]
    assert seen == [n for n in stood[:-1] if n]


def test_sizes_for_each_channel_with_lengths() -> None:
    model, x = Padded(), sequences(9)
    y, lengths = labelled(model, x, 0), torch.tensor([6, 5, 4, 3, 2, 1, 6, 6, 2])
    sizes: list[Any] = [(0.01, 0.02, 0.05), (0.05, 0.05, 0.2), 0.3]
    curve = evaluate(model, (x, y, lengths), BOX, QUICK, eps=sizes, settings=SMALL)
    assert curve.eps == ([0.01, 0.02, 0.05], [0.05, 0.05, 0.2], 0.3)
    for size, point in zip(sizes, curve.evaluations, strict=True):
        within = (torch.arange(6) < lengths[:, None])[:, :, None].numpy()
        assert_obeys(point.result.x_adv, x, size, "linf", (0.0, 1.0), within)
    assert list(curve.accuracy) == sorted(curve.accuracy, reverse=True)
    assert "0.01,0.02,0.05" in str(curve)


@pytest.mark.parametrize(
    ("eps", "error", "says"),
    [
        ([], TypeError, "list of sizes"),
        (0.1, TypeError, "list of sizes"),
        ([(0.1, 0.2, 0.1), (0.2, 0.1, 0.2)], ValueError, "neither ball"),
        ([(0.1, 0.2), (0.2, 0.3, 0.2)], ValueError, "channels"),
        ([0.1, -0.2], ValueError, "not negative"),
        ([0.1, float("nan")], ValueError, "finite"),
        ([torch.ones(3)], TypeError, "tensor"),
        (["a"], TypeError, "number"),
    ],
)
def test_sizes_without_an_order_are_refused(eps: Any, error: type[Exception], says: str) -> None:
    model, x, y = case(4)
    with pytest.raises(error, match=says):
        evaluate(model, (x, y), BOX, QUICK, eps=eps)


class Clock:
    """Stands for `time` in the evaluation: each batch takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def ticking(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, run = Clock(), rounds._run

    def timed(*given: Any) -> AttackResult:
        clock.now += 1.0
        return run(*given)

    monkeypatch.setattr(rounds, "time", clock)
    monkeypatch.setattr(sys.modules["resolvent.attacks.autoattack.evaluate"], "time", clock)
    monkeypatch.setattr(rounds, "_run", timed)
    return clock


def test_a_limit_leaves_an_honest_bracket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x, y = case()
    whole = evaluate(model, (x, y), BOX, QUICK, settings=SMALL)
    ticking(monkeypatch)
    brackets = []
    for _ in range(8):  # the same call again and again, one batch each, until everything is done
        settings = EvaluationSettings(batch_size=5, probe=0, limit=1.0)
        part = evaluate(model, (x, y), BOX, QUICK, settings=settings, folder=tmp_path / "out")
        low, high = part.bracket
        assert low <= whole.accuracy <= high
        assert part.result.undecided.sum() == round((high - low) * len(x))
        assert not (part.result.undecided & part.result.robust).any()
        record = json.loads((tmp_path / "out" / "record.json").read_text())
        assert record["bracket"] == [low, high]
        assert record["undecided"] == sum(r["undecided"] for r in record["records"])
        brackets.append((low, high))
        if low == high:
            assert "between" not in str(part)
            break
        assert "between" in str(part)
        assert "undecided" in str(part)
        assert "not run" in str(part) or "on " in str(part)
    assert len(brackets) > 3
    assert brackets[-1] == (whole.accuracy, whole.accuracy)
    assert [b[0] for b in brackets] == sorted(b[0] for b in brackets)
    assert [b[1] for b in brackets] == sorted((b[1] for b in brackets), reverse=True)
    assert part.records == whole.records


def test_a_limit_over_several_sizes_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x, y = case()
    sizes = [0.02, 0.05]
    whole = evaluate(model, (x, y), BOX, QUICK, eps=sizes, settings=SMALL)
    ticking(monkeypatch)
    settings = EvaluationSettings(batch_size=5, probe=0, limit=3.0)
    for _ in range(12):
        part = evaluate(model, (x, y), BOX, QUICK, eps=sizes, settings=settings, folder=tmp_path)
        for (low, high), right in zip(part.bracket, whole.accuracy, strict=True):
            assert low <= right <= high
        uppers = [high for _, high in part.bracket]
        assert uppers == sorted(uppers, reverse=True)  # broken in a smaller ball counts in the larger one
        if all(low == high for low, high in part.bracket):
            break
    assert part.accuracy == whole.accuracy
    record = json.loads((tmp_path / "record.json").read_text())
    assert [p["accuracy"] for p in record["curve"]] == list(whole.accuracy)
    assert record["samples"] == 16
    assert record["preset"] == "custom"
    assert (tmp_path / "eps-0.02" / "record.json").is_file()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf"), "3"])
def test_limits_are_positive(limit: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="limit"):
        EvaluationSettings(limit=limit)


def test_shards_join_to_one_curve() -> None:
    model, x, y = case()
    whole = evaluate(model, (x, y), BOX, QUICK, eps=[0.01, 0.05], settings=SMALL)
    shards = [
        evaluate(model, (x, y), BOX, QUICK, eps=[0.01, 0.05], settings=EvaluationSettings(probe=0, shard=(i, 2)))
        for i in range(2)
    ]
    joined = Curve.joined(shards)
    assert joined.accuracy == whole.accuracy
    assert [r.broken_by for r in joined.evaluations[1].records] == [r.broken_by for r in whole.evaluations[1].records]
    assert "standard error" in str(joined)


def test_one_number_among_channels_finds_its_place() -> None:
    assert ascending([0.1, (0.1, 0.05)]) == ((0.1, 0.05), 0.1)
    assert ascending([(0.2, 0.1), 0.1]) == (0.1, (0.2, 0.1))


def test_everything_broken_and_nothing_attacked() -> None:
    model, x, y = case()
    curve = evaluate(Victim(model).f, (x, y), BOX, (APGD(steps=2),), eps=[0.0, 0.9, 1.0], settings=SMALL)
    assert curve.accuracy[0] == curve.clean_accuracy
    assert curve.accuracy[-1] <= curve.accuracy[1]


def test_no_accuracy_is_sure_of_itself() -> None:
    """At 0 and at 100 % the standard error is that of one sample in n, as in the report's tables."""
    from resolvent.attacks.autoattack.outcome import standard_error
    from resolvent.report.tables import column

    for share, n in ((1.0, 24), (0.0, 24), (0.5, 24), (1.0, 1), (0.25, 4)):
        assert standard_error(share, n) == pytest.approx(column.standard_error(share, n))
        assert standard_error(share, n) > 0
