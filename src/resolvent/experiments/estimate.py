"""What a cell will cost, from one measured training step: nobody should find out after a day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from resolvent.data import Task
from resolvent.experiments.cell import Cell
from resolvent.models import build_model, count_parameters
from resolvent.training.batch import Batches

# Gradients a sample that survives everything costs: AutoAttack's own budgets, with forward passes counted as a third.
GRADIENTS = {"standard": 3700, "qi2024": 2100, "plus": 7000, "rand": 4200, "fast": 120}


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes, both rough: a step is measured once, an attack is counted as if every sample survived."""

    parameters: int
    steps: int
    training: float  # seconds
    attacks: float  # seconds, at most
    memory: int  # bytes that one step keeps for its backward pass, parameters and optimiser included

    @property
    def seconds(self) -> float:
        return self.training + self.attacks

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.steps:,} steps, training {duration(self.training)}, "
            f"attacks at most {duration(self.attacks)}, memory {self.memory / 2**20:,.0f} MiB"
        )


def estimate(cell: Cell, task: Task, device: str = "cpu") -> Estimate:
    """Measure one step of the cell's own objective on a real batch, then multiply."""
    model = build_model(cell.model).to(device).train()
    split = task.train.select(torch.arange(min(len(task.train), cell.budget.batch_size))).to(device)
    batch = Batches(split, len(split), cell.seed).at(0)
    objective = cell.goal.objective(task.bounds)
    seconds, held = _step(lambda: objective(model, batch).value)
    per_epoch = -(-len(task.train) // cell.budget.batch_size)
    steps = per_epoch * cell.budget.epochs
    passes = 1 if cell.goal.kind == "standard" else cell.goal.steps + 2
    gradient = seconds / passes / len(split)  # of one sample
    asked = sum(_samples(plan.samples, task) * len(plan.on) * GRADIENTS[plan.preset] for plan in cell.attacks)
    count = count_parameters(model)
    return Estimate(count, steps, steps * seconds * 1.15, asked * gradient, held + 16 * count)


def _step(loss: Callable[[], torch.Tensor]) -> tuple[float, int]:
    """Seconds and saved bytes of a forward and a backward pass, the quickest of a few: others may be busy here too."""
    loss().backward()  # warms up
    tried = [_measured(loss) for _ in range(3)]
    return min(seconds for seconds, _ in tried), tried[0][1]


def _measured(loss: Callable[[], torch.Tensor]) -> tuple[float, int]:
    held = 0

    def weigh(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal held
        held += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        started = time.perf_counter()
        value = loss()
        value.backward()
        if value.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started, held


def _samples(asked: int | None, task: Task) -> int:
    return len(task.test) if asked is None else min(asked, len(task.test))


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3.4 h`, `2.1 days`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
