"""A first look at everything on the embedded digits: models of about one size, trained and attacked the same way.

The small size is the demo, for two cores and a few minutes: AutoAttack `standard` on 128 samples at the training eps,
the checkpoint chosen by validation, curves over eps and radii with three points.
"""

from __future__ import annotations

from dataclasses import replace

from resolvent.experiments.cell import AttackPlan, Budget, Cell, CertifyPlan, TaskChoice
from resolvent.experiments.objective_settings import Goal, Kind
from resolvent.experiments.recipes.compared import Compared, make_compared
from resolvent.experiments.recipes.size import Size

EPS = 0.1  # of inputs in [0, 1]
KINDS: tuple[Kind, ...] = ("trades", "standard")  # each half of the list takes two workers about the same time
SLOW = ("mamba", "gru", "cnn", "linear")  # AutoAttack takes a minute where half of the samples resist
BETA = 1.0  # of TRADES; how it was found is told in docs/runs.md
SAMPLES = 128
RADII = (0.1, 0.25)


def quickstart(size: Size = "small") -> list[Cell]:
    """S4, S5, Mamba, L2RU, a GRU, a CNN and a linear map of similar size: standard training and TRADES, attacked."""
    cells = [_cell(name, of, kind) for kind in KINDS for name, of in make_compared().items()]
    if size == "small":
        return [cell for cell in cells if cell.goal.kind == "standard" or cell.tags[0] not in SLOW]
    return [_whole(cell) for cell in cells]


def _cell(name: str, of: Compared, kind: Kind) -> Cell:
    budget = Budget(
        epochs=of.epochs,
        batch_size=64,
        lr=of.lr,
        weight_decay=of.weight_decay,
        warmup=1.0,
        clip=1.0,
        evaluate_every=max(1, of.epochs // 4),
        choose="clean" if kind == "standard" else "robust",  # standard training only lowers robust accuracy
    )
    own = AttackPlan("standard", "linf", EPS, SAMPLES, batch_size=SAMPLES)
    weaker = AttackPlan("fast", "linf", EPS / 2, SAMPLES, batch_size=SAMPLES, probe=0)
    return Cell(
        "quickstart",
        (name, "digits", kind),
        of.model,
        TaskChoice("digits"),
        Goal(kind, "linf", EPS if kind == "trades" else None, steps=3, beta=BETA),  # no attack in standard training
        budget,
        (own,) if kind == "standard" else (own, weaker),
        CertifyPlan(RADII, SAMPLES, preset="fast" if name == "l2ru" else None),
        analyse=True,
        attribution=kind != "standard" and name != "linear",  # which is a single component
        corrupt=SAMPLES,
    )


def _whole(cell: Cell) -> Cell:
    """Twice as long, both checkpoints, all test samples, two more eps."""
    own = replace(cell.attacks[0], samples=None, on=("best", "last"))
    weaker = tuple(AttackPlan("fast", "linf", eps, probe=0) for eps in (EPS / 4, EPS / 2))
    budget = replace(cell.budget, epochs=2 * cell.budget.epochs, evaluate_every=2)
    goal = replace(cell.goal, steps=7)
    return replace(cell, budget=budget, attacks=(own, *weaker), certify=CertifyPlan(), goal=goal, corrupt=10_000)
