"""The corruption stage: the trained model on corrupted test samples."""

from __future__ import annotations

from typing import Any

from resolvent.attacks import CorruptionSettings, evaluate_corruptions
from resolvent.experiments.work import Work


def corrupt_run(work: Work) -> dict[str, Any]:
    """Every corruption in five severities on the best checkpoint."""
    _, data = work.tested(work.cell.corrupt or 0)
    settings = CorruptionSettings(work.cell.seed)
    found = evaluate_corruptions(work.trained("best"), data, bounds=work.task.bounds, settings=settings)
    return found.to_dict()
