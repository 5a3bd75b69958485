"""Attribution of a trained model: each component's effect on the feature change under attack, in train and test.

Figures 3 and 4 of the study of deep SSMs under adversarial training (Qi et al. 2024): samples of both splits, attacked
by the run's PGD-10 probe.
"""

from __future__ import annotations

from typing import Any

from resolvent.analysis import attribution_record
from resolvent.data import Task
from resolvent.data.preparation.preprocess import Bounds
from resolvent.data.task import Split
from resolvent.experiments.objective_settings import Goal
from resolvent.models import Model, TwoTower, components_of

SAMPLES = 256


def attribute(
    model: Model | TwoTower,
    task: Task,
    goal: Goal,
    seed: int = 0,
    samples: int = SAMPLES,
    *,
    test: Split | None = None,
    bounds: Bounds | None = None,
) -> dict[str, Any]:
    """The record of `attribution_record` on train and test: changes in per cent, of each layer and their mean.

    `test` and `bounds` replace the task's own if given: samples of another file.
    """
    probe = goal.probe(task.bounds if bounds is None else bounds)
    if probe is None or task.vocabulary is not None or task.classes is None:
        raise ValueError("attribution needs a classifier of real inputs and a run that names the eps of its attack.")
    splits = {"train": task.train, "test": task.test if test is None else test}
    components = components_of(model)
    return attribution_record(model, splits, probe.threat, components, attack=probe.attack, samples=samples, seed=seed)
