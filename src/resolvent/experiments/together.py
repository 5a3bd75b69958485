"""An evaluation shared by the processes that torchrun started; its outcome is that of a single one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from resolvent.attacks import Threat
from resolvent.attacks.evaluate import RECORD, Evaluation, EvaluationSettings, evaluate, probed
from resolvent.attacks.presets import Preset
from resolvent.attacks.rounds import Listener
from resolvent.attacks.store import write_json
from resolvent.training.crew import crew


def evaluate_together(
    f: Callable[..., Tensor],
    data: tuple[Tensor, ...],
    threat: Threat,
    preset: Preset,
    settings: EvaluationSettings,
    folder: Path | None = None,
    listener: Listener | None = None,
) -> Evaluation:
    """`attacks.evaluate` on (x, y) or (x, y, lengths). Every process attacks its share, and all get the whole.

    The shares lie in folder/part-0-of-2 ...; folder/record.json is about all samples, as that of one process is.
    """
    team = crew()
    samples = min(len(data[0]), settings.samples or len(data[0]))
    shares = min(team.size, samples)
    if shares <= 1 and team.size == 1:
        return evaluate(f, data, threat, preset, settings=settings, folder=folder, listener=listener)
    mine: Evaluation | None = None
    if team.rank < shares:
        part = replace(settings, shard=(team.rank, shares), probe=0)
        place = None if folder is None else folder / f"part-{team.rank}-of-{shares}"
        mine = evaluate(f, data, threat, preset, settings=part, folder=place, listener=listener if team.first else None)
    whole = Evaluation.joined([found for found in team.gather(mine) if found is not None])
    flags: Any = probed(whole, f, data, threat, preset, settings=settings).probes if team.first else None
    whole = replace(whole, probes=team.gather(flags)[0])
    if folder is not None and team.first:
        write_json(folder / RECORD, whole.to_dict())
    team.wait()
    return whole
