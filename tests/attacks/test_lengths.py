"""Padded sequences: f takes lengths, samples leave the batch with theirs, and padding changes nothing that is found."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import (
    APGD,
    FAB,
    FGSM,
    PGD,
    Draws,
    Square,
    Threat,
    apgd,
    autoattack,
    dlr,
    evaluate,
    fab,
    fgsm,
    hop_skip_jump,
    pgd,
    square,
    targeted_dlr,
)
from resolvent.attacks.autoattack.evaluate import EvaluationSettings
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, build_model

LENGTHS = torch.tensor([12, 5, 9, 1, 12, 7, 3, 10])
EPS = {"linf": 0.05, "l2": 0.25, "l1": 1.0}
ATTACKS = (
    FGSM(),
    PGD(steps=6, restarts=2, stop=True),
    APGD(steps=12),
    APGD(dlr, steps=12, restarts=2),
    APGD(targeted_dlr, steps=12, targets=4),
    FAB(steps=8),
    FAB(steps=8, targets=4),
)


@cache
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(
            ChannelsConfig(2), ResidualConfig(S4DConfig(4)), ClassifierConfig(5), d_model=8, layers=1, final_norm=True
        )
        return build_model(config).double().eval()


def padded() -> tuple[Tensor, Tensor]:
    """Padding is large on purpose: whoever reads it gives another answer. Two labels are wrong from the start."""
    x = torch.rand(8, 12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[torch.arange(12) >= LENGTHS[:, None]] = 0.9
    with torch.no_grad():
        y = model()(x, LENGTHS).argmax(1)
    y[:2] = (y[:2] + 1) % 5
    return x, y


def alone(i: int) -> tuple[Tensor, Tensor]:
    x, y = padded()
    return x[i : i + 1, : LENGTHS[i]], y[i : i + 1]


def _named(attack: Any) -> str:
    objective = getattr(getattr(attack, "objective", None), "__name__", "")
    return f"{type(attack).__name__}-{objective}-{getattr(attack, 'targets', 0)}"


@pytest.mark.parametrize("norm", EPS)
@pytest.mark.parametrize("attack", ATTACKS, ids=_named)
def test_an_attack_finds_what_it_finds_on_each_short_sequence(attack: Any, norm: Any) -> None:
    x, y = padded()
    threat = Threat(norm, EPS[norm], (0.0, 1.0))
    found = attack(model(), x, y, threat, draws=Draws.of(x, 5), lengths=LENGTHS)
    assert int(found.success.sum()) > 2
    for i, length in enumerate(LENGTHS.tolist()):
        short, label = alone(i)
        one = attack(model(), short, label, threat, draws=Draws.of(x, 5).select(torch.tensor([i])))
        assert bool(one.success) == bool(found.success[i])
        # Sums over longer rows round otherwise; the iteration carries it along.
        assert_close(found.x_adv[i, :length], one.x_adv[0], tolerance=1e-6)
        assert torch.equal(found.x_adv[i, length:], x[i, length:])
        assert int(found.queries[i]) == int(one.queries)


FUNCTIONS = {
    fgsm: {}, pgd: {"steps": 3}, apgd: {"steps": 3}, fab: {"steps": 2}, square: {"n_queries": 4},
    hop_skip_jump: {"iterations": 1, "queries": 4},
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_take_lengths_as_their_classes_do(function: Any) -> None:
    x, y = padded()
    found = function(model(), x, y, Threat("l2", 0.5, (0.0, 1.0)), lengths=LENGTHS, **FUNCTIONS[function])
    assert torch.equal(found.x_adv[torch.arange(12) >= LENGTHS[:, None]], x[torch.arange(12) >= LENGTHS[:, None]])
    assert not torch.equal(found.x_adv, x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'step'"):
        function(model(), x, y, Threat("l2", 0.5), step=3)


@pytest.mark.parametrize("norm", EPS)
def test_square_leaves_padding_alone_and_keeps_lengths_beside_their_samples(norm: Any) -> None:
    """Its windows follow the padded length, so that its luck differs from that on a short sequence."""
    x, y = padded()
    threat = Threat(norm, 2 * EPS[norm], (0.0, 1.0))
    found = Square(n_queries=60)(model(), x, y, threat, lengths=LENGTHS)
    assert 2 < int(found.success.sum()) < 8
    assert torch.equal(found.success, model()(found.x_adv, LENGTHS).argmax(1) != y)
    for i, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(found.x_adv[i, length:], x[i, length:])


@pytest.mark.parametrize("batch_size", [None, 3])
def test_autoattack_and_evaluate(batch_size: int | None) -> None:
    x, y = padded()
    threat = Threat("linf", 0.05, (0.0, 1.0))
    attacks = (APGD(steps=8), FAB(steps=5, targets=2), Square(n_queries=20))
    result = autoattack(model(), x, y, threat, attacks, lengths=LENGTHS, batch_size=batch_size)
    with torch.no_grad():
        assert torch.equal(result.robust, model()(result.x_adv, LENGTHS).argmax(1) == y)
    assert torch.equal(result.broken_by[:2], torch.zeros(2, dtype=torch.int64))
    settings = EvaluationSettings(batch_size=batch_size)
    loader = [(x[:5], y[:5], LENGTHS[:5]), (x[5:], y[5:], LENGTHS[5:])]
    evaluation = evaluate(model(), loader, threat, attacks, settings=settings)
    assert torch.equal(evaluation.result.x_adv, result.x_adv)
    shards = [
        evaluate(model(), (x, y, LENGTHS), threat, attacks, settings=EvaluationSettings(shard=(i, 2), probe=0))
        for i in (0, 1)
    ]
    assert torch.equal(type(evaluation).joined(shards).result.broken_by, result.broken_by)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.full((8,), 13), "1 .. 12"),
        (torch.zeros(8, dtype=torch.int64), "1 .. 12"),
        (torch.ones(7, dtype=torch.int64), "(8,)"),
        (torch.ones(8), "whole numbers"),
        ([1] * 8, "list"),
    ],
)
def test_lengths_that_do_not_fit(lengths: Any, message: str) -> None:
    x, y = padded()
    with pytest.raises(ValueError, match="lengths") as error:
        PGD()(model(), x, y, Threat("linf", 0.1), lengths=lengths)
    assert message in str(error.value)
