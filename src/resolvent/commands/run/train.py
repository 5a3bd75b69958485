"""Your own run from the command line: any layer on any task or file, with the same stages as the papers' runs."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path

from resolvent.commands.attack.sizes import bounds_of, line_of, number, size, sizes_of
from resolvent.commands.run.arguments import list_given
from resolvent.commands.run.check import require_number, require_within
from resolvent.commands.run.train_model import RESERVOIR, check_model, layer_of, model_for, name_of
from resolvent.commands.run.train_options import DataOptions, ModelOptions, TrainingOptions
from resolvent.data import Task
from resolvent.experiments.cell import AttackPlan, Budget, Cell, CertifyPlan, TaskChoice
from resolvent.experiments.objective_settings import Goal
from resolvent.experiments.tasks import open_task
from resolvent.models import build_model
from resolvent.models.reservoir.learn import WORK
from resolvent.training.weighted import balanced_weights
from resolvent.usage.error import UsageError

SAMPLES = 500  # test samples attacked and certified


def train_cell(source: DataOptions, model: ModelOptions, training: TrainingOptions) -> tuple[Cell, Task]:
    """The cell, and its task as read to learn shapes and classes. Everything is checked before returning: the
    model has been built once."""
    check_model(model)
    goal, budget = goal_of(training), budget_of(training)
    if layer_of(model) == RESERVOIR:
        budget = reservoir_budget(budget, training)
    choice = task_choice(source)
    task = open_task(choice)
    samples = sum(map(len, task.splits().values()))
    if task.classes in (1, samples):
        raise UsageError(
            f"{task.name}: expected two or more classes, each of several samples, got {task.classes} in {samples} "
            "samples; --label names the column of labels, --task regression takes numbers as quantities."
        )
    counts = {part: len(split) for part, split in task.splits().items()}
    if not all(counts.values()):
        found = ", ".join(f"{count} for {part}" for part, count in counts.items())
        raise UsageError(
            f"{task.name}: {samples} samples are too few to hold some out: {found}; give more of them, or a file of "
            "test samples with --test."
        )
    goal = within_reach(goal, training, task)
    classified = task.vocabulary is None and task.classes is not None
    config = model_for(task, model)
    if not budget.lr and training.batch_size is None:  # nothing depends on it but memory and time
        budget = replace(budget, batch_size=min(budget.batch_size, max(1, WORK // (task.length * config.d_model))))
    cell = Cell(
        "train",
        (_tag(choice.name), name_of(model), goal.kind),
        config,
        choice,
        replace(goal, weights=class_weights(training, task)),
        budget,
        (_attack(goal),) if classified and goal.eps is not None else (),
        _certificate(model) if classified else None,
        analyse=True,
    )
    build_model(cell.model)
    return cell, task


def _certificate(model: ModelOptions) -> CertifyPlan:
    """A certified model is evaluated at its own radii."""
    return CertifyPlan((), SAMPLES) if model.certified else CertifyPlan(samples=SAMPLES)


def goal_of(training: TrainingOptions) -> Goal:
    """The objective and threat of training."""
    kind = training.objective or "standard"
    require_within("--attack-steps", training.attack_steps, 1, 10_000)
    require_number("--beta", training.beta, zero=True)
    if training.beta is not None and kind != "trades":
        raise UsageError(f"--beta belongs to --objective trades, not to {kind}: leave it out.")
    require_number("--awp", training.awp)
    if training.awp is not None and kind == "standard":
        raise UsageError(
            "--awp belongs to --objective pgd-at or trades; standard training has no attack: leave it out."
        )
    if training.attack_steps is not None and kind == "standard":
        raise UsageError("--attack-steps belongs to --objective pgd-at or trades; standard training has no attack.")
    given = next((text for text in (training.eps, training.eps_raw) if text is not None), None)
    eps = None if given is None else max(line_of(size("--eps" if training.eps else "--eps-raw", given)))
    if eps is None and (training.bounds or training.bounds_raw):
        raise UsageError("--bounds is the range for an attack, and there is no attack: add --eps, or leave it out.")
    steps = 10 if training.attack_steps is None else training.attack_steps
    goal = Goal(kind, training.norm or "linf", eps, steps, beta=6.0 if training.beta is None else training.beta)
    return goal if training.awp is None else replace(goal, awp=training.awp)


def within_reach(goal: Goal, training: TrainingOptions, task: Task) -> Goal:
    """The goal with sizes and bounds in the model's units, by the task's scaling."""
    if goal.eps is None:
        return goal
    if task.vocabulary is not None:
        raise UsageError(
            f"{task.name} is made of tokens, which have no distance in any norm, so there is nothing to attack: leave "
            "out --eps and train with --objective standard. The trained model can be attacked: `resolvent attack RUN "
            "--substitutions 3` exchanges tokens, `--embedding --eps 0.5` moves their embeddings."
        )
    line = line_of(sizes_of(training, task.preprocess, "0")[0])
    bounds = bounds_of(training, task.preprocess)
    low, high = ((), ()) if bounds is None else (line_of(bound) for bound in bounds)
    if not all(map(math.isfinite, (*low, *high))):
        raise UsageError("--bounds must be finite numbers in training; leave out what is open.")
    for name, values in (("--eps", line), ("--bounds", low), ("--bounds", high)):
        if len(values) > 1 and len(values) != task.channels:
            raise UsageError(f"{name} holds {len(values)} values, but {task.name} has {task.channels} channels.")
    return replace(goal, eps=max(line), channels=line if len(line) > 1 else (), low=low, high=high)


def class_weights(training: TrainingOptions, task: Task) -> tuple[float, ...]:
    """One number per class; empty if equal."""
    wish = training.class_weights or "none"
    if wish == "none":
        return ()
    if task.classes is None:
        raise UsageError(f"--class-weights is for classes, and {task.name} has real targets: leave it out.")
    if wish == "balanced":
        return balanced_weights(task.train.y, task.classes)
    weights = tuple(number("--class-weights", word) for word in wish.split(","))
    if len(weights) != task.classes or not all(0 < weight < float("inf") for weight in weights):
        raise UsageError(
            f"--class-weights must be balanced, none, or {task.classes} positive numbers, one for each class of "
            f"{task.name} ({', '.join(task.class_names) or 'in their order'}), got {wish!r}."
        )
    return weights


def budget_of(training: TrainingOptions) -> Budget:
    """The training budget."""
    require_within("--epochs", training.epochs, 1, 10**6)
    require_within("--batch-size", training.batch_size, 1, 2**20)
    require_number("--lr", training.lr)
    require_within("--accumulate", training.accumulate, 1, 2**20)
    require_within("--patience", training.patience, 1, 10**6)
    epochs = 20 if training.epochs is None else training.epochs
    return Budget(
        epochs=epochs,
        batch_size=64 if training.batch_size is None else training.batch_size,
        lr=4e-3 if training.lr is None else training.lr,
        warmup=min(1.0, epochs / 2),
        clip=1.0,
        evaluate_every=max(1, epochs // 10),
        choose="clean" if training.objective in (None, "standard") else "robust",
        accumulate=training.accumulate or 1,
        patience=training.patience,
        average=training.average or "none",
        average_from=epochs // 2 if training.average == "swa" else 0.0,
    )


def reservoir_budget(budget: Budget, training: TrainingOptions) -> Budget:
    """Smaller steps from the solution in closed form; none where nothing else was asked for: it is only measured."""
    if training.epochs is None and training.objective in (None, "standard"):
        steps = ("--class-weights", "--lr", "--patience", "--average")
        if wrong := [name for name in list_given(training) if name in steps]:
            raise UsageError(
                f"{wrong[0]} is for training by steps, and a reservoir's read-out is solved in closed form: add "
                "--epochs to train it further, or leave it out."
            )
        return replace(budget, epochs=1, lr=0.0, groups=False, warmup=0.0, evaluate_every=1)
    return replace(budget, lr=1e-3 if training.lr is None else training.lr)


def _tag(data: str) -> str:
    """A file's or task's name for a path: invalid characters become dashes."""
    return re.sub(r"[^A-Za-z0-9_+.=-]+", "-", Path(data).stem).strip("-.") or "data"


def task_choice(source: DataOptions) -> TaskChoice:
    """A file if there is one of that name, else a task's name. Only options that differ from defaults are stored."""
    data = Path(source.data or "digits")
    record = {
        each.name: value
        for each in fields(source)
        if each.name != "data" and (value := getattr(source, each.name)) != each.default
    }
    usual = {"missing": "refuse", "scale": "none"}
    record = {name: value for name, value in record.items() if value != usual.get(name)}
    if data.suffix or data.exists():
        if "test" in record:
            record["test"] = str(Path(record["test"]).resolve())
        return TaskChoice(data.stem, tuple(record.items()), file=str(data.resolve()))
    if record:
        name = next(iter(record)).replace("header", "no-header")
        raise ValueError(f"run: --{name} is for a file of your own, {str(data)!r} is a task; leave it out.")
    return TaskChoice(str(data))


def _attack(goal: Goal) -> AttackPlan:
    assert goal.eps is not None
    plan = AttackPlan("fast", goal.norm, goal.eps, SAMPLES, on=("best", "last"))
    return replace(plan, channels=goal.channels, low=goal.low, high=goal.high)
