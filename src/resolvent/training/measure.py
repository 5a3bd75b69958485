"""Evaluate a model on a split: its score on clean samples and under the probe attack; the score of an output."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.attacks import Victim
from resolvent.data.task import Split
from resolvent.training.process_group import ProcessGroup
from resolvent.training.settings import Probe
from resolvent.training.step.batch import Batch, binary, criterion, wide
from resolvent.training.step.batches import take

_SEED = 0  # of the probe's starts: always the same, so that epochs differ only by their weights


def measure(
    model: nn.Module, split: Split, probe: Probe | None = None, batch_size: int = 256, group: ProcessGroup | None = None
) -> dict[str, float]:
    """{"loss", "clean"} and, with a probe, {"robust", "robust_loss"}: means over the split.

    Scores ("clean", "robust") are accuracies, or minus the squared error.

    The model's mode is restored. A process group shares the samples. A split on another device is sent to the model's
    device batch by batch.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> sorted(rv.training.measure(model, rv.load_task("digits").test))
        ['clean', 'loss']
    """
    group = group or ProcessGroup()
    names = ("loss", "clean") if probe is None else ("loss", "clean", "robust", "robust_loss")
    device = next((p.device for p in model.parameters()), split.x.device)
    sums = torch.zeros(len(names), dtype=torch.float64, device=device)
    with Victim(model).attacked():
        for index in torch.arange(len(split))[group.rows(len(split))].split(batch_size):
            found = _sums(model, take(split, index, _SEED, device), probe) if len(index) else {}
            sums += torch.tensor([found.get(name, 0.0) for name in names], dtype=torch.float64, device=sums.device)
    group.add([sums])
    return {name: value / len(split) for name, value in zip(names, sums.tolist(), strict=True)}


def _sums(model: nn.Module, batch: Batch, probe: Probe | None) -> dict[str, float]:
    with torch.no_grad():
        output = wide(batch.call(model)(batch.x))
        found = {"loss": criterion(output, batch.y), "clean": score(output, batch.y)}
        if probe is not None:
            one = binary(output) and not batch.y.is_floating_point()
            victim = Victim((lambda *given: pair_logits(model(*given))) if one else model)
            inputs, clean = (batch.x, batch.y, batch.fitted(probe.threat)), pair_logits(output) if one else output
            padded: dict[str, Any] = {} if batch.lengths is None else {"lengths": batch.lengths}
            x_adv = probe.attack(victim, *inputs, draws=batch.draws, clean_logits=clean, **padded).x_adv
            moved = wide(victim.forward(x_adv, batch.lengths))
            found |= {"robust": score(moved, batch.y), "robust_loss": criterion(moved, batch.y)}
    return {name: float(value.double().sum()) for name, value in found.items()}


def score(output: Tensor, y: Tensor) -> Tensor:
    """Per sample (b,), higher is better: 1 or 0 for a class, minus the squared error for real y."""
    if y.is_floating_point():
        return -criterion(output, y)
    return (choose_class(output) == y).to(output.dtype)


def choose_class(output: Tensor) -> Tensor:
    """The predicted class (b,)."""
    return (output[:, 0] > 0).long() if binary(output) else output.argmax(-1)


def pair_logits(output: Tensor) -> Tensor:
    """One logit z as those of two classes, (0, z), as attacks require; others unchanged."""
    return F.pad(output, (1, 0)) if binary(output) else output
