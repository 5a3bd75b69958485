"""Shards of an evaluation add up to the evaluation of one process: records, table, flags, probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from resolvent.attacks import PGD, Threat
from resolvent.attacks.autoattack.evaluate import Evaluation, EvaluationSettings, add_probes, evaluate
from resolvent.attacks.square.attack import Square
from resolvent.experiments.stages.together import curve_together

BOX = Threat("linf", 0.05, (0.0, 1.0))
QUICK: Any = (PGD(steps=4), Square(n_queries=20))
SETTINGS = EvaluationSettings(batch_size=5, probe=6)


class Dull(nn.Module):
    """Rounds its input, so that white-box attacks find no gradient: every flag of the kind is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.out((x.detach() * 20).round().flatten(1) / 20))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.out(x.flatten(1)))


@pytest.mark.parametrize("kind", [Plain, Dull])
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_parts_add_up(kind: type[nn.Module], shards: int) -> None:
    torch.manual_seed(3)
    model, x = kind(), torch.rand(23, 6, 2, dtype=torch.float64)
    y = model(x).argmax(1)
    y[::6] = (y[::6] + 1) % 3
    whole = evaluate(model, (x, y), BOX, QUICK, settings=SETTINGS)
    own = [replace(SETTINGS, shard=(i, shards), probe=0) for i in range(shards)]
    parts = [evaluate(model, (x, y), BOX, QUICK, settings=settings) for settings in own]
    joined = add_probes(Evaluation.joined(parts), model, (x, y), BOX, QUICK, settings=SETTINGS)
    assert joined.flags == whole.flags
    assert bool(whole.flags) == (kind is Dull)
    assert joined.result.table == whole.result.table
    for a, b in zip(joined.records, whole.records, strict=True):
        assert replace(a, margin=0.0, norm=0.0) == replace(b, margin=0.0, norm=0.0)
        assert (a.margin, a.norm) == pytest.approx((b.margin, b.norm), rel=1e-10, abs=1e-10)


def test_a_single_process_evaluates_as_ever() -> None:
    torch.manual_seed(3)
    model, x = Plain(), torch.rand(9, 6, 2, dtype=torch.float64)
    y = model(x).argmax(1)
    alone = evaluate(model, (x, y), BOX, QUICK, settings=SETTINGS)
    (found,) = curve_together(model, (x, y), BOX, None, QUICK, SETTINGS).evaluations
    assert found.to_dict() == alone.to_dict()
