"""A run in memory: its parts, its input checks, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat, Victim
from resolvent.attacks.autoattack.flags import softmax_outputs
from resolvent.attacks.autoattack.store import digest, jsonable
from resolvent.data.loader import fits
from resolvent.data.task import Split, Task
from resolvent.disk import fingerprint
from resolvent.training.history import Row, best_rows, has_stalled
from resolvent.training.objective import Objective
from resolvent.training.optimiser import make_optimiser
from resolvent.training.process_group import ProcessGroup, current_group
from resolvent.training.settings import FitSettings, Probe
from resolvent.training.state import Ledger, RunFolder, Save
from resolvent.training.step.average import Average
from resolvent.training.step.batches import Batches, take
from resolvent.training.step.guard import Guard, Taken, guard
from resolvent.training.weighted import require_classes

FORMAT = 1


@dataclass(eq=False)
class Run:
    model: nn.Module
    task: Task  # splits used often are on the model's device if they fit
    objective: Objective
    settings: FitSettings
    probe: Probe | None
    batches: Batches
    optimiser: torch.optim.Optimizer
    average: Average
    files: RunFolder | None = None
    ledger: Ledger = field(default_factory=Ledger)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # of the best epochs so far
    group: ProcessGroup = field(default_factory=current_group)
    guard: Guard | None = None  # if updates guard themselves
    awaited: Taken | None = None  # the step whose numbers are still pending

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def steps(self) -> int:
        return self.settings.epochs * len(self.batches)

    @property
    def epoch(self) -> int:
        """The epoch of the next step, counted from 0."""
        return self.ledger.step // len(self.batches)

    def best(self) -> dict[str, Row]:
        """The best rows so far, by the name under which their weights are stored."""
        return best_rows(self.ledger.rows, self.settings.choose)

    @property
    def over(self) -> bool:
        """Whether all steps are done, or early stopping applies."""
        stalled = has_stalled(self.ledger.rows, self.settings.choose, self.settings.patience)
        return self.ledger.step >= self.steps or stalled

    def autocast(self) -> torch.autocast:
        half = self.settings.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def store(self) -> None:
        if self.files is not None and self.group.first:
            self.files.store(self.model, self.optimiser, self.average, self.ledger)


def begin(
    model: nn.Module,
    task: Task,
    objective: Objective,
    settings: FitSettings,
    folder: str | Path | None,
    save: Save | None,
) -> Run:
    """Check everything, then start anew or resume from the folder."""
    own = inner_threat(objective)
    probe = settings.probe or (None if own is None else Probe(own))
    check(model, task, settings, [] if probe is None else [probe.threat, own or probe.threat])
    require_classes(objective, task.classes)
    parameter = next(p for p in model.parameters() if p.is_floating_point() or p.is_complex())
    task = place_task(task, parameter, settings.track_test)
    batches = Batches(task.train, settings.batch_size, settings.seed, task.augment, parameter.device)
    run = Run(model, task, objective, settings, probe, batches, make_optimiser(model, settings), Average(settings))
    run.guard = guard(run.optimiser, parameter.device)
    check_outputs(run)
    check_group(run)
    run.group.share(model)
    if folder is not None:
        _open(run, folder, save)
    return run


def place_task(task: Task, like: Tensor, track_test: bool) -> Task:
    """The task in the model's precision, its splits on the model's device if they fit. Splits that do not fit, and a
    test split used only once at the end, stay where they are and are sent batch by batch."""
    wide = torch.float64 if like.dtype == torch.float64 else None
    found = {}
    for name, split in task.splits().items():
        split = split.to(split.x.device, wide)
        often = name != "test" or track_test
        found[name] = split.to(like.device) if often and fits(split, like.device) else split
    return replace(task, train=found["train"], validation=found["validation"], test=found["test"])


def check_group(run: Run) -> None:
    """Every process needs a row of every batch: one without would be missing from the all-reduce."""
    smallest = len(run.task.train) % run.settings.batch_size or run.settings.batch_size
    if smallest < run.group.size:
        raise ValueError(
            f"fit: {run.group.size} processes would share a batch of {smallest}, the last of an epoch in batches of "
            f"{run.settings.batch_size}; use fewer processes, or another batch size."
        )


def _open(run: Run, folder: str | Path, save: Save | None) -> None:
    """The first process creates or checks the folder, then the others read it; an error stops all."""
    wrong: Exception | None = None
    if run.group.first:
        try:
            run.files = RunFolder(folder, config_of(run), save)
            resume(run, run.files)
        except Exception as error:
            wrong = error
    wrong = run.group.gather(wrong)[0]
    if wrong is not None:
        raise wrong
    if not run.group.first:
        run.files = RunFolder(folder, config_of(run), save)
        resume(run, run.files)
    run.group.wait()


def resume(run: Run, files: RunFolder) -> None:
    """The stored state, or a first one: a resumed run keeps its own initial weights whatever the model's are."""
    ledger = files.restore(run.model, run.optimiser, run.average)
    if ledger is None:
        run.store()
        return
    run.ledger = ledger
    run.weights = {name: files.kept(name) for name in run.best()}


def inner_threat(objective: Objective) -> Threat | None:
    """The threat of an adversarial objective, if it has an `inner`."""
    return getattr(getattr(objective, "inner", None), "threat", None)


def config_of(run: Run) -> dict[str, Any]:
    """Everything that the results depend on, as JSON values; the initial weights are in the first stored state."""
    shapes = {name: [str(t.dtype), *t.shape] for name, t in run.model.state_dict().items()}
    splits = {name: _describe_split(split) for name, split in run.task.splits().items()}
    varied = {} if run.task.augment is None else {"augment": jsonable(run.task.augment)}
    return {
        "format": FORMAT,
        "model": {"class": type(run.model).__name__, "shapes": fingerprint(shapes)[:16]},
        "model_config": jsonable(getattr(run.model, "config", None)),
        "objective": jsonable(run.objective),
        "settings": _describe_settings(run.settings),
        "probe": jsonable(run.probe),
        "task": {"name": run.task.name, **splits, **varied},
    }


LATER = ("accumulate", "patience", "average", "average_decay", "average_from")  # settings missing from older runs


def _describe_settings(settings: FitSettings) -> dict[str, Any]:
    """Every setting; newer ones only if used, so that older runs can be resumed."""
    usual = FitSettings()
    same = [name for name in LATER if getattr(settings, name) == getattr(usual, name)]
    return {name: value for name, value in jsonable(settings).items() if name not in same}


def check(model: nn.Module, task: Task, settings: FitSettings, threats: list[Threat]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"fit: expected an nn.Module, got {type(model).__name__}; build one with build_model(config).")
    if not any(p.is_floating_point() or p.is_complex() for p in model.parameters()):
        raise ValueError("fit: the model has no parameter to train.")
    if not isinstance(task, Task):
        raise TypeError(f"fit: expected a Task, got {type(task).__name__}; use load_task(name) or from_arrays(x, y).")
    if not isinstance(settings, FitSettings):
        raise TypeError(f"fit: expected FitSettings, got {type(settings).__name__}.")
    if not len(task.train):
        raise ValueError(f"fit: task {task.name!r} has no training samples.")
    if not len(task.validation) and not (settings.track_test and len(task.test)):
        raise ValueError(
            f"fit: task {task.name!r} has no validation samples to choose the best checkpoint by; split some off, or "
            "set track_test=True to choose by the test split."
        )
    if threats and task.vocabulary is not None:
        raise ValueError(
            f"fit: task {task.name!r} has tokens, which no norm ball surrounds; train adversarially on the part of the "
            "model after the embedding."
        )
    for threat in threats:
        for split in task.splits().values():
            if len(split):
                whole = split.packed is None and not split.mapped
                few = split if whole else split.select(torch.arange(min(len(split), 1024)))
                threat.check(few.x)  # otherwise the first few: the task has checked all against its bounds


def check_outputs(run: Run) -> None:
    """One small pass, so that a wrong output width is reported before any work."""
    first = torch.arange(min(2, len(run.task.train)))
    batch = take(run.task.train, first, 0, run.device)
    with Victim(run.model).attacked(), torch.no_grad(), run.autocast():
        output = batch.call(run.model)(batch.x)
    if not isinstance(output, Tensor):
        raise TypeError(f"fit: expected the model to return a tensor of outputs, got {type(output).__name__}.")
    classes = run.task.classes
    if classes == 2 and output.shape == (len(first), 1):  # one logit for two classes
        return
    if classes is not None and output.shape != (len(first), classes):
        raise ValueError(
            f"fit: expected logits of shape (b, {classes}) for task {run.task.name!r}, got {tuple(output.shape)} for "
            f"b = {len(first)}; give the model {classes} outputs."
        )
    softmax = None if classes is None else softmax_outputs(output)
    if softmax is not None:
        raise ValueError(f"fit: {softmax.explanation}")
    if classes is None and output.numel() != batch.y.numel():
        raise ValueError(f"fit: expected outputs like the targets {tuple(batch.y.shape)}, got {tuple(output.shape)}.")


def _describe_split(split: Split) -> dict[str, Any]:
    lengths = None if split.lengths is None else digest(split.lengths)
    return {"samples": len(split), "x": digest(split.x), "y": digest(split.y), "lengths": lengths}
