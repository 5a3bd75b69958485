"""What is done with a trained model. A stage takes the work and returns plain values for the record.

A stage is listed with the question whether a cell wants it; they run in this order, and each is kept when it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from resolvent.attacks import Threat
from resolvent.attacks.evaluate import EvaluationSettings
from resolvent.attacks.store import digest
from resolvent.experiments.analysed import analysed
from resolvent.experiments.attributed import attributed
from resolvent.experiments.cell import AttackPlan, Cell
from resolvent.experiments.certified import certified
from resolvent.experiments.fourier import disturbed
from resolvent.experiments.generalised import generalised
from resolvent.experiments.together import evaluate_together
from resolvent.experiments.work import Work
from resolvent.models import Model, TwoTower

Stage = Callable[[Work], dict[str, Any]]
EXAMPLES = 4  # pictures of clean and attacked sequences


def attacked(work: Work) -> dict[str, Any]:
    """Every planned evaluation on every checkpoint that it names, keyed `NAME-best`; equal weights only once."""
    found: dict[str, dict[str, Any]] = {}
    for plan in work.cell.attacks:
        done: dict[tuple[str, ...], str] = {}  # by the content of the weights
        for kept in plan.on:
            key, model = f"{plan.name}-{kept}", work.trained(kept)
            same = found.get(done.setdefault(tuple(map(digest, model.state_dict().values())), key))
            found[key] = _evaluation(work, plan, model, key) if same is None else dict(same)
            found[key]["checkpoint"] = kept
    return found


def _evaluation(work: Work, plan: AttackPlan, model: Model | TwoTower, key: str) -> dict[str, Any]:
    split = work.task.test
    n = len(split) if plan.samples is None else min(plan.samples, len(split))
    part = split.select(torch.arange(n)).to(work.device)  # unpacks what is kept packed
    x, data = part.x, (part.x, part.y) if part.lengths is None else (part.x, part.y, part.lengths)
    settings = EvaluationSettings(work.cell.seed, plan.batch_size, probe=plan.probe)
    threat = Threat(plan.norm, plan.eps, work.task.bounds)
    place = work.folder.path / "attack" / key
    outcome = evaluate_together(model, data, threat, plan.preset, settings, place)
    told = outcome.to_dict()
    records = told.pop("records")  # per sample, in the evaluation's own record.json
    moved = outcome.result.x_adv
    broken = [i for i, r in enumerate(records) if r["broken_by"] not in (None, "clean")][:EXAMPLES]
    examples = [_example(x[i], moved[i], records[i]) for i in broken]
    return told | {"eps": plan.eps, "norm": plan.norm, "examples": examples}


def _example(x: torch.Tensor, moved: torch.Tensor, record: dict[str, Any]) -> dict[str, Any]:
    """One sample before and after: values to four digits, which is what a picture shows."""
    fields = {name: record[name] for name in ("index", "label", "clean_prediction", "prediction", "broken_by")}
    return fields | {"clean": _rounded(x), "attacked": _rounded(moved)}


def _rounded(values: torch.Tensor) -> list[Any]:
    return [[round(v, 4) for v in row] for row in values.double().reshape(values.shape[0], -1).tolist()]


def explained(work: Work) -> dict[str, Any]:
    """What each component of the best checkpoint does to the difference that an attack makes."""
    return attributed(work.trained("best"), work.task, work.cell.goal, work.cell.seed)


STAGES: tuple[tuple[str, Callable[[Cell], bool], Stage], ...] = (
    ("attacks", lambda cell: bool(cell.attacks), attacked),
    ("certificate", lambda cell: cell.certify is not None, certified),
    ("analysis", lambda cell: cell.analyse, analysed),
    ("attribution", lambda cell: cell.attribution and cell.goal.eps is not None, explained),
    ("fourier", lambda cell: cell.fourier is not None, disturbed),
    ("generalisation", lambda cell: cell.bound is not None, generalised),
)
SHARED = ("attacks",)  # stages in which all processes of a run take part
