"""A model on a split: its score on clean samples and under the probe."""

from __future__ import annotations

import torch
from torch import nn

from resolvent.attacks import Victim
from resolvent.data.task import Split
from resolvent.training.batch import Batch, take
from resolvent.training.criterion import criterion, score, wide
from resolvent.training.settings import Probe

_SEED = 0  # of the probe's starts: the same every time, so that two epochs differ by their weights alone


def measure(model: nn.Module, split: Split, probe: Probe | None = None, batch_size: int = 256) -> dict[str, float]:
    """{"loss", "clean"} and, with a probe, "robust": means over the split; accuracies, or minus the squared error.

    The model is left in the mode in which it was found.
    """
    sums: dict[str, float] = {}
    device = split.x.device
    with Victim(model).attacked():
        for index in torch.arange(len(split), device=device).split(batch_size):
            for name, value in _sums(model, take(split, index, _SEED), probe).items():
                sums[name] = sums.get(name, 0.0) + value
    return {name: value / len(split) for name, value in sums.items()}


def _sums(model: nn.Module, batch: Batch, probe: Probe | None) -> dict[str, float]:
    with torch.no_grad():
        output = wide(batch.call(model)(batch.x))
        found = {"loss": criterion(output, batch.y), "clean": score(output, batch.y)}
        if probe is not None:
            threat = batch.fitted(probe.threat)
            victim = Victim(batch.call(model))
            x_adv = probe.attack(victim, batch.x, batch.y, threat, draws=batch.draws, clean_logits=output).x_adv
            found["robust"] = score(victim.forward(x_adv), batch.y)
    return {name: float(value.double().sum()) for name, value in found.items()}
