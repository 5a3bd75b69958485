"""An estimate of a cell's cost, from a short measurement of training."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from resolvent.experiments.cell import Cell
from resolvent.experiments.tasks import glimpse
from resolvent.models import build_model, count_parameters
from resolvent.training.step.batches import Batches

# Gradients per sample that survives all attacks: AutoAttack's budgets, with forward passes counted as a third.
GRADIENTS = {"standard": 3700, "qi2024": 2100, "plus": 7000, "rand": 4200, "fast": 120}

MOMENT = 2.0  # seconds


@dataclass(frozen=True)
class Estimate:
    """Rough seconds and bytes: a step is measured, an attack is counted as if every sample survived."""

    parameters: int
    steps: int
    training: float  # seconds
    attacks: float  # seconds, at most
    memory: int  # bytes saved for one step's backward pass, including parameters and optimiser

    @property
    def seconds(self) -> float:
        return self.training + self.attacks

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.steps:,} steps, training {duration(self.training)}, "
            f"attacks at most {duration(self.attacks)}, memory {self.memory / 2**20:,.0f} MiB"
        )


def estimate(cell: Cell, device: str = "cpu") -> Estimate:
    """Measure steps of the cell's own objective on samples of its task, and extrapolate."""
    task, n_train, n_test = glimpse(cell.task, cell.budget.batch_size)
    model = build_model(cell.model).to(device).train()
    split = task.train.select(torch.arange(min(len(task.train), cell.budget.batch_size))).to(device)
    batch = Batches(split, len(split), cell.seed).at(0)
    objective = cell.goal.objective(task.bounds)
    seconds, held = extrapolate_step(lambda rows: objective(model, batch.part(slice(rows))).value, len(split))
    per_epoch = -(-n_train // cell.budget.batch_size)
    steps = per_epoch * cell.budget.epochs
    passes = 1 if cell.goal.kind == "standard" else cell.goal.steps + 2
    gradient = seconds / passes / len(split)  # per sample
    asked = sum(min(plan.samples or n_test, n_test) * len(plan.on) * GRADIENTS[plan.preset] for plan in cell.attacks)
    count = count_parameters(model)
    return Estimate(count, steps, steps * seconds * 1.15, asked * gradient, held + 16 * count)


def extrapolate_step(loss: Callable[[int], torch.Tensor], rows: int) -> tuple[float, int]:
    """Seconds and saved bytes of a step of this many rows: measured at increasing sizes until one takes a moment,
    then extrapolated along the line through the last two."""
    taken = min(2, rows)
    loss(taken).backward()  # warms up
    found = [(taken, *_step(loss, taken))]
    while taken < rows and found[-1][1] < MOMENT:
        taken = min(4 * taken, rows)
        found.append((taken, *_step(loss, taken)))
    seconds, held = (_line([(r, c[i]) for r, *c in found[-2:]], rows) for i in (0, 1))
    return seconds, round(held)


def _line(points: Sequence[tuple[int, float]], at: int) -> float:
    """The value there, at least the last one; a single point is extrapolated through the origin."""
    (r1, c1), (r2, c2) = points if len(points) == 2 else ((0, 0.0), *points)
    return max(c2, c2 + (c2 - c1) / (r2 - r1) * (at - r2))


def _step(loss: Callable[[int], torch.Tensor], rows: int) -> tuple[float, int]:
    """Seconds and saved bytes of a forward and a backward pass, the fastest of a few: the machine may be busy."""
    tried = [_measure(lambda: loss(rows))]
    while len(tried) < 3 and sum(seconds for seconds, _ in tried) < MOMENT:
        tried.append(_measure(lambda: loss(rows)))
    return min(seconds for seconds, _ in tried), tried[0][1]


def _measure(loss: Callable[[], torch.Tensor]) -> tuple[float, int]:
    scale = _Scale()
    with torch.autograd.graph.saved_tensors_hooks(scale.weigh, lambda box: box.tensor):
        started = time.perf_counter()
        value = loss()
        value.backward()
        if value.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started, scale.most


class _Scale:
    """The peak of bytes saved by graphs: an attack inside a step releases its own before the next starts."""

    def __init__(self) -> None:
        self.most = 0
        self._held: Counter[tuple[int, int]] = Counter()  # by storage and size: several graphs may share one

    def weigh(self, tensor: torch.Tensor) -> _Box:
        storage = tensor.untyped_storage()
        key, box = (storage.data_ptr(), storage.nbytes()), _Box(tensor)
        self._held[key] += 1
        weakref.finalize(box, self._let_go, key)
        self.most = max(self.most, sum(size for _, size in self._held))
        return box

    def _let_go(self, key: tuple[int, int]) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]


@dataclass(frozen=True, eq=False)
class _Box:
    """Lives as long as the graph that saved the tensor."""

    tensor: torch.Tensor


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3.4 h`, `2.1 days`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
