"""Stages run on a trained model. A stage takes the work and returns plain values for the record.

Each stage is listed with a predicate on the cell; they run in this order, and each result is stored when done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.autoattack.rounds import Listener
from resolvent.attacks.autoattack.store import digest
from resolvent.attacks.pgd import PGD
from resolvent.experiments.cell import AttackPlan, Cell
from resolvent.experiments.how import never
from resolvent.experiments.objective_settings import threat_of
from resolvent.experiments.stages.analysed import analyse_layers
from resolvent.experiments.stages.answered import count_answers
from resolvent.experiments.stages.attributed import attribute
from resolvent.experiments.stages.certified import certify_run
from resolvent.experiments.stages.corrupted import corrupt_run
from resolvent.experiments.stages.fourier import sweep_noise
from resolvent.experiments.stages.generalised import bound_generalisation
from resolvent.experiments.stages.together import curve_together
from resolvent.experiments.work import Work
from resolvent.models import Model, RegressionConfig, TwoTower

Stage = Callable[[Work], dict[str, Any]]
EXAMPLES = 4  # plots of clean and attacked sequences


def attack_checkpoints(work: Work) -> dict[str, Any]:
    """Every planned evaluation on every checkpoint it names, keyed `NAME-best`; equal weights only once."""
    found: dict[str, dict[str, Any]] = {}
    for plan in work.cell.attacks:
        done: dict[tuple[str, ...], str] = {}  # by weight content
        for kept in plan.on:
            key, model = f"{plan.name}-{kept}", work.trained(kept)
            same = found.get(done.setdefault(tuple(map(digest, model.state_dict().values())), key))
            found[key] = _evaluation(work, plan, model, key) if same is None else dict(same)
            found[key]["checkpoint"] = kept
    return found


def _listener(work: Work, key: str) -> Listener | None:
    """Checks the time after every batch, when it is stored."""
    if work.how.late is never:
        return None
    return lambda name, done, total: work.how.check_time(f"attack {key} stopped after {done} of {total} by {name}")


def _evaluation(work: Work, plan: AttackPlan, model: Model | TwoTower, key: str) -> dict[str, Any]:
    part, data = work.tested(plan.samples)
    settings = EvaluationSettings(work.cell.seed, plan.batch_size, probe=plan.probe)
    threat = threat_of(plan, plan.eps, work.task.bounds)
    place = work.folder.path / "attack" / key
    curve = curve_together(model, data, threat, None, plan.preset, settings, place, _listener(work, key))
    (outcome,) = curve.evaluations
    record = outcome.to_dict()
    records = record.pop("records")  # per sample, in the evaluation's own record.json
    moved = outcome.result.x_adv
    broken = [i for i, r in enumerate(records) if r["broken_by"] not in (None, "clean")][:EXAMPLES]
    steps = [len(part.x[i]) if part.lengths is None else int(part.lengths[i]) for i in broken]
    examples = [_example(part.x[i][:own], moved[i][:own], records[i]) for i, own in zip(broken, steps, strict=True)]
    probed = _probe_pgd(work, plan, model, data, outcome.result.robust)
    return record | {"eps": plan.eps, "norm": plan.norm, "pgd10": probed, "examples": examples}


def _probe_pgd(
    work: Work, plan: AttackPlan, model: Model | TwoTower, data: tuple[torch.Tensor, ...], stood: torch.Tensor
) -> dict[str, Any]:
    """PGD-10, the papers' standard measurement, on the samples of the evaluation; `missed` are those only it broke."""
    goal = work.cell.goal
    own = (goal.norm, goal.eps) == (plan.norm, plan.eps)  # the threat of the training measurements
    attack = PGD(10, goal.step_size if own else None)
    settings = EvaluationSettings(work.cell.seed, plan.batch_size, probe=0)
    threat = threat_of(plan, plan.eps, work.task.bounds)
    robust = evaluate(model, data, threat, (attack,), settings=settings).result.robust
    missed = int((stood.cpu() & ~robust.cpu()).sum())
    return {"accuracy": float(robust.double().mean()), "missed": missed}


def _example(x: torch.Tensor, moved: torch.Tensor, record: dict[str, Any]) -> dict[str, Any]:
    """One sample before and after: values to four digits, for plotting."""
    fields = {name: record[name] for name in ("index", "label", "clean_prediction", "prediction", "broken_by")}
    return fields | {"clean": _round_values(x), "attacked": _round_values(moved)}


def _round_values(values: torch.Tensor) -> list[Any]:
    return [[round(v, 4) for v in row] for row in values.double().reshape(values.shape[0], -1).tolist()]


STAGES: tuple[tuple[str, Callable[[Cell], bool], Stage], ...] = (
    ("answers", lambda cell: not isinstance(cell.model.head, RegressionConfig), count_answers),
    ("attacks", lambda cell: bool(cell.attacks), attack_checkpoints),
    ("certificate", lambda cell: cell.certify is not None, certify_run),
    ("analysis", lambda cell: cell.analyse, analyse_layers),
    (
        "attribution",
        lambda cell: cell.attribution and cell.goal.eps is not None,
        lambda work: attribute(work.trained("best"), work.task, work.cell.goal, work.cell.seed),
    ),
    ("fourier", lambda cell: cell.fourier is not None, sweep_noise),
    ("corruptions", lambda cell: bool(cell.corrupt), corrupt_run),
    ("generalisation", lambda cell: cell.bound is not None, bound_generalisation),
)
SHARED = ("attacks",)  # stages shared by all processes of a run
