"""The certificate stage: pairs of logits, the smoothed model, and the attack above both."""

from __future__ import annotations

from pathlib import Path

import torch
from small import small_cell
from torch import nn

from helpers import assert_close
from resolvent.experiments import Cell, CertifyPlan, Goal, run_cell
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.stages.smoothed import SoftVote


def test_the_record_holds_the_smoothed_curve_below_the_attack(tmp_path: Path) -> None:
    plan = CertifyPlan((0.05, 0.5), samples=6, smoothing=0.2, copies=60)
    cell = small_cell(goal=Goal(noise=0.2), attacks=(), certify=plan)
    record = run_cell(cell, tmp_path, tell=lambda line: None)["certificate"]
    assert record["gain"] is None
    assert "LayerNorm" in record["reason"]
    held = record["smoothing"]
    assert held["sigma"] == 0.2
    certified = [p["certified"] for p in held["curve"]]
    assert certified[0] >= certified[1]
    assert all(p["certified"] <= p["attacked"] for p in held["curve"])
    assert certified[0] <= held["clean"]


def test_the_vote_that_an_attack_climbs() -> None:
    """A mean of probabilities over the same noise in every call; without noise, the model itself."""
    torch.manual_seed(0)
    f = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()
    x = torch.randn(4, 6, 1, dtype=torch.float64)
    assert_close(SoftVote(f, 0.0)(x), f(x).log_softmax(-1))
    vote = SoftVote(f, 0.5, copies=7, seed=3)
    assert torch.equal(vote(x), vote(x))
    noise = torch.randn(7, 6, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mean = torch.stack([f(x + 0.5 * n).softmax(-1) for n in noise]).mean(0)
    assert_close(vote(x).exp(), mean)
    assert_close(vote(x[1:2]), vote(x)[1:2])


def test_the_recipe_has_three_ways_and_three_seeds() -> None:
    cells = [cell for cell in cells_of("certified-digits", "small") if isinstance(cell, Cell)]
    assert [cell.tags[0] for cell in cells] == ["l2ru"] * 3 + ["lru"] * 3 + ["s5-smoothed"] * 3
    assert {cell.seed for cell in cells} == {0, 1, 2}
    plans = {cell.tags[0]: cell.certify for cell in cells}
    assert plans["s5-smoothed"].smoothing == cells[-1].goal.noise > 0  # type: ignore[union-attr]
    assert plans["l2ru"].smoothing is None  # type: ignore[union-attr]
