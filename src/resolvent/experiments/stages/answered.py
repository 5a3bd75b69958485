"""The answers stage: the best checkpoint's confusion matrix on the whole test split."""

from __future__ import annotations

from typing import Any

import torch

from resolvent.experiments.work import Work
from resolvent.training.measure import choose_class
from resolvent.training.step.batch import wide
from resolvent.training.step.batches import take

BATCH = 256
MOST = 64  # most classes for a readable matrix


def count_answers(work: Work) -> dict[str, Any]:
    """Samples and correct predictions per class; `confusion[label][answer]` if there are few classes."""
    model, split, classes = work.trained("best"), work.task.test, work.task.classes
    if classes is None:
        return {}
    found = []
    with torch.no_grad():
        for index in torch.arange(len(split)).split(BATCH):
            batch = take(split, index, 0, work.device)
            found.append(torch.stack([batch.y.long(), choose_class(wide(batch.call(model)(batch.x)))]).cpu())
    labels, answers = torch.cat(found, 1) if found else torch.zeros(2, 0, dtype=torch.long)
    counts = torch.bincount(labels * classes + answers, minlength=classes**2).view(classes, classes)
    record = {"of": counts.sum(1).tolist(), "right": counts.diagonal().tolist(), "checkpoint": "best"}
    return record | ({"confusion": counts.tolist()} if classes <= MOST else {})
