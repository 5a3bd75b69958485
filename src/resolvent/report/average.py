"""Derived rows of the Long Range Arena's tables: averages over the tasks, and the best of S4D's variants."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from resolvent.report.claim import VARIANTS
from resolvent.report.evidence import Evidence

RECIPE = "lra"
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
FAILED = {"transformer": {"pathx": 50.0}, "s4d-lin": {"pathx": 50.0}}  # in the tables; their averages count chance

Scores = dict[str, float]


def with_rows(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence followed by derived rows: for each seed the best of three, then the averages."""
    found = list(evidence)
    variants = [held for held in found if held.tags[:1] and held.tags[0] in VARIANTS]
    found += [best for best in map(_best, _alike(variants, 1).values()) if best is not None]
    return [*found, *_averages(found)]


def average(name: str, scores: Scores) -> float | None:
    """The average of a model's scores; None if one is missing that the table does not list as failed."""
    held = FAILED.get(name, {}) | scores
    return statistics.mean(held[task] for task in TASKS) if set(TASKS) <= set(held) else None


def _alike(evidence: Sequence[Evidence], shared: int) -> dict[tuple[str, int], dict[str, Evidence]]:
    """Runs of one seed with the tag at that place in common (0: the model, 1: the task), by their other tag."""
    groups: dict[tuple[str, int], dict[str, Evidence]] = {}
    for held in evidence:
        if held.recipe == RECIPE and len(held.tags) == 2 and held.tags[1] in TASKS:
            groups.setdefault((held.tags[shared], held.seed), {})[held.tags[1 - shared]] = held
    return groups


def _best(runs: dict[str, Evidence]) -> Evidence | None:
    """The best per column; the failed variant on Path-X does not count."""
    task = next(iter(runs.values())).tags[1]
    needed = [name for name in VARIANTS if task not in FAILED.get(name, {})]
    if not set(needed) <= set(runs):
        return None
    held = list(runs.values())
    shared = set.intersection(*(set(run.values) for run in held)) - {"diverged", "epochs"}
    values = {measure: max(run.values[measure] for run in held) for measure in shared}
    return Evidence(RECIPE, ("s4d", task), held[0].seed, values, source=" ".join(run.source for run in held))


def _averages(evidence: Sequence[Evidence]) -> list[Evidence]:
    made = []
    for (name, seed), runs in _alike(evidence, 0).items():
        values: Scores = {}
        for measure in set.intersection(*(set(run.values) for run in runs.values())) - {"diverged", "epochs"}:
            mean = average(name, {task: run.values[measure] for task, run in runs.items()})
            values |= {} if mean is None else {measure: mean}
        if values:
            sources = " ".join(run.source for run in runs.values())
            made.append(Evidence(RECIPE, (name, "average"), seed, values, source=sources))
    return made
