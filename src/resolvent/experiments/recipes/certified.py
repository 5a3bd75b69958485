"""Classifiers with guarantees on the embedded digits: by construction (L2RU, normalised LRU) and by smoothing (S5)."""

from __future__ import annotations

from dataclasses import replace

from resolvent.experiments.cell import Cell, CertifyPlan, TaskChoice
from resolvent.experiments.objective_settings import Goal
from resolvent.experiments.recipes.budgets import budget_of
from resolvent.experiments.recipes.digits import digits_model
from resolvent.experiments.recipes.size import Size
from resolvent.models import ModelConfig
from resolvent.models.presets import l2ru_classifier, l2ru_training, lru_classifier

SIGMA = 0.25  # of the noise, for inputs in [0, 1]
RADII = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = (0, 1, 2)


def certified_digits(size: Size = "full") -> list[Cell]:
    """L2RU, spectrally-normalised LRU and smoothed S5 on the digits: clean, certified and attacked over L2 radii."""
    plan = CertifyPlan(RADII) if size == "full" else CertifyPlan(RADII, samples=100)
    bounded: dict[str, ModelConfig] = {"l2ru": l2ru_classifier(), "lru": lru_classifier()}
    cells = [_cell(name, model, Goal(), plan) for name, model in bounded.items()]
    votes = replace(plan, smoothing=SIGMA, copies=10_000)
    if size == "small":
        votes = replace(votes, samples=50, copies=500)
    cells.append(_cell("s5-smoothed", digits_model("s5"), Goal(noise=SIGMA), votes))
    return [cell.seeded(seed) for cell in cells for seed in SEEDS]


def _cell(name: str, model: ModelConfig, goal: Goal, plan: CertifyPlan) -> Cell:
    budget = budget_of(l2ru_training(), warmup=1.0, clip=1.0, evaluate_every=5, choose="clean")
    return Cell("certified-digits", (name, "digits"), model, TaskChoice("digits"), goal, budget, certify=plan)
