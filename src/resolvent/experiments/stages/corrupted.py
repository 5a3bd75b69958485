"""The corruption stage: the trained model on corrupted test samples."""

from __future__ import annotations

from typing import Any

import torch

from resolvent.attacks import CorruptionSettings, evaluate_corruptions
from resolvent.experiments.work import Work


def corrupt_run(work: Work) -> dict[str, Any]:
    """Every corruption in five severities on the best checkpoint."""
    split = work.task.test
    n = min(work.cell.corrupt or 0, len(split))
    part = split.select(torch.arange(n)).to(work.device)
    data = (part.x, part.y) if part.lengths is None else (part.x, part.y, part.lengths)
    settings = CorruptionSettings(work.cell.seed)
    found = evaluate_corruptions(work.trained("best"), data, bounds=work.task.bounds, settings=settings)
    return found.to_dict()
