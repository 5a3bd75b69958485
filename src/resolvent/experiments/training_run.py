"""One cell from its settings to its record: train, attack, certify, analyse. It can be killed and resumed any time.

    record = run_cell(cell, "runs/quickstart/s4-trades/seed-0")

Every stage stores its result in the folder; a complete stage is read, not repeated. Times are separate under "times":
everything else in the record is the same on every run of the same cell.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from resolvent.data import Task
from resolvent.data.preparation.keep import preprocess_of
from resolvent.experiments.cell import Cell
from resolvent.experiments.how import How, never
from resolvent.experiments.provenance import provenance
from resolvent.experiments.stages.generalised import norms_watch
from resolvent.experiments.stages.stages import SHARED, STAGES, Stage
from resolvent.experiments.store.entry import enter_folder
from resolvent.experiments.store.folder import RECORD, Folder, Tell
from resolvent.experiments.store.prepared import keep_preprocess
from resolvent.experiments.tasks import open_task
from resolvent.experiments.work import Work
from resolvent.models import LevelsConfig, Model, build_model, count_parameters, learn_reservoir, save_model
from resolvent.training import Diverged, FitSettings, fit
from resolvent.training.process_group import current_group
from resolvent.training.state import DamagedState

FORMAT = 1
log = logging.getLogger("resolvent.experiments")


def run_cell(
    cell: Cell, path: str | Path, *, device: str = "cpu", tell: Tell = log.info, how: How | None = None
) -> dict[str, Any]:
    """Run what is missing and return the record. A diverged run has a record, too, with the reason under "failed".

    `how` replaces `device`; when its time is up `Paused` is raised, and the same call resumes there.

    Examples:
        >>> from resolvent.experiments import Budget, Cell, TaskChoice, run_cell
        >>> small = TaskChoice("digits", samples=64)
        >>> cell = Cell("mine", ("s4d",), rv.ModelConfig(d_model=8, layers=1), small, budget=Budget(epochs=1))
        >>> sorted(run_cell(cell, "runs/mine")["training"]["summary"])
        ['best', 'gap', 'last']
    """
    folder, group = Folder(path), current_group()
    way = how or How(device)
    with enter_folder(folder, cell, group):
        done = group.gather(_found(folder, tell) if group.first else None)[0]
        if done is not None:
            return done
        heard: Tell = tell if group.first else lambda line: None
        work = Work(cell, folder, open_task(cell.task), torch.device(way.device), heard, way)
        return _complete(work)


def _found(folder: Folder, tell: Tell) -> dict[str, Any] | None:
    """The record of a complete run whose weights are intact; a damaged record is set aside and remade."""
    done = folder.sound_record(tell)
    return done if done is None or not folder.damaged() else None


def _complete(work: Work) -> dict[str, Any]:
    cell, times = work.cell, {}
    keep_preprocess(work)
    record: dict[str, Any] = {"format": FORMAT, "cell": cell.to_dict(), "versions": provenance(work.device)}
    record["task"] = facts(work.task)
    started = time.perf_counter()
    try:
        record["training"] = _train(work)
    except Diverged as stop:
        work.tell(f"{cell.address}: {stop}")
        record["failed"] = str(stop)
    times["training"] = round(time.perf_counter() - started, 3)
    for name, wanted, stage in STAGES if "failed" not in record else ():
        if not wanted(cell):
            continue
        started = time.perf_counter()
        record[name] = _run_stage(work, name, stage)
        times[name] = round(time.perf_counter() - started, 3)
    record["times"] = times | {"rows": [row.pop("seconds", None) for row in record.get("training", {}).get("rows", [])]}
    if current_group().first:
        work.folder.write(RECORD, record)
        if not work.how.points:
            work.folder.drop_pieces()
    current_group().wait()
    return record


def _run_stage(work: Work, name: str, stage: Stage) -> dict[str, Any]:
    """The result of a stage; all processes share the attacks, only the first does the rest."""
    group = current_group()
    group.wait()
    found = work.folder.stage(name)
    group.wait()
    if found is None and (group.first or name in SHARED):
        work.how.check_time(f"training is done; {name} and what follows are left")
        work.tell(f"{work.cell.address}: {name}")
        found = stage(work)
        if group.first:
            work.folder.finish(name, found)
    group.wait()
    return found if found is not None else work.folder.stage(name) or {}


def _train(work: Work) -> dict[str, Any]:
    """Train, or read the stored training result; a damaged state or checkpoint is renamed and remade."""
    group = current_group()
    damaged = group.gather(work.folder.damaged() if group.first else [])[0]
    if damaged:
        _anew(work, f"{', '.join(damaged)} no longer holds what training wrote; training again")
    try:
        return _fit(work)
    except DamagedState as wrong:
        _anew(work, f"{wrong}; it is set aside and training starts again")
        return _fit(work)


def _anew(work: Work, why: str) -> None:
    work.tell(f"{work.cell.address}: {why}")
    if current_group().first:
        work.folder.set_aside(TRAINED)
    current_group().wait()


def _fit(work: Work) -> dict[str, Any]:
    cell, bounds = work.cell, work.task.bounds
    torch.manual_seed(cell.seed)
    model = build_model(cell.model).to(work.device)
    _begin_at_mean(model, work.task)
    if isinstance(cell.model.head, LevelsConfig):
        assert isinstance(model, Model)
        train, generator = work.task.train, torch.Generator().manual_seed(cell.seed)
        learn_reservoir(model, train.x, train.y, train.lengths, generator=generator)
    goal = cell.goal
    settings = FitSettings.of(cell.budget, cell.seed, goal.probe(bounds) if work.task.vocabulary is None else None)
    watch, late = norms_watch(cell), None if work.how.late is never else work.how.late
    save = partial(save_model, preprocess=preprocess_of(work.task))
    own: dict[str, Any] = {"save": save, "watch": watch, "late": late}
    history = fit(model, work.task, goal.objective(bounds), settings, work.folder.path, **own)
    if current_group().first:
        work.folder.seal()
    current_group().wait()
    return finite({"parameters": count_parameters(model), "rows": list(history.rows), "summary": history.summary})


@torch.no_grad()
def _begin_at_mean(model: Any, task: Task) -> None:
    """Real targets keep the units of the file: a readout of one answer begins at their mean."""
    out: Any = getattr(getattr(model, "head", None), "out", None)
    y = task.train.y if task.train.y.dim() > 1 else task.train.y[:, None]
    if task.classes is not None or getattr(getattr(out, "bias", None), "shape", None) != y.shape[1:]:
        return
    out.bias += y.mean(0).to(out.bias)
    if model.config.certified is None:
        out.weight *= y.std(0, correction=0).clamp_min(torch.finfo(y.dtype).tiny)[:, None].to(out.weight)


def finite(value: Any) -> Any:
    """A copy with non-finite numbers replaced by None: an unstable model has infinite losses, which JSON lacks."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


TRAINED = ("checkpoint", "config.json", "summary.json", "metrics.jsonl", "stage", "attack", RECORD)


def facts(task: Task) -> dict[str, Any]:
    """The report's facts about the data."""
    return {
        "name": task.name,
        "length": task.length,
        "channels": task.channels,
        "vocabulary": task.vocabulary,
        "classes": task.classes,
        "class_names": list(task.class_names),
        "bounds": None if task.bounds is None else list(task.bounds),
        "samples": {name: len(split) for name, split in task.splits().items()},
        "licence": task.licence,
        "source": task.source,
    }
