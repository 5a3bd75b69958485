"""An evaluation shared by the processes that torchrun started; its result is that of a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from resolvent.attacks import Threat
from resolvent.attacks.autoattack.curve import Curve, ascending
from resolvent.attacks.autoattack.evaluate import RECORD, EvaluationSettings, add_probes, evaluate
from resolvent.attacks.autoattack.evaluation import Evaluation
from resolvent.attacks.autoattack.presets import Preset
from resolvent.attacks.autoattack.rounds import Listener
from resolvent.attacks.threat.threat import Sizes
from resolvent.disk import write_json
from resolvent.training.process_group import current_group


def curve_together(
    f: Callable[..., Tensor],
    data: tuple[Tensor, ...],
    threat: Threat,
    sizes: Sequence[Sizes] | None,
    preset: Preset,
    settings: EvaluationSettings,
    folder: Path | None = None,
    listener: Listener | None = None,
) -> Curve:
    """`attacks.evaluate` on (x, y) or (x, y, lengths). Every process attacks its share, and all get the whole.

    sizes   one after another; None is the threat's own, a curve of one point
    folder  the shares lie in part-0-of-2 ...; its record.json is about all samples, as that of one process is
    """
    group = current_group()
    samples = min(len(data[0]), settings.samples or len(data[0]))
    shares = min(group.size, samples)
    if shares <= 1 and group.size == 1:
        return _curve(evaluate(f, data, threat, preset, eps=sizes, settings=settings, folder=folder, listener=listener))
    mine: Curve | None = None
    if group.rank < shares:
        part = replace(settings, shard=(group.rank, shares), probe=0)
        place = None if folder is None else folder / f"part-{group.rank}-of-{shares}"
        heard = listener if group.first else None
        mine = _curve(evaluate(f, data, threat, preset, eps=sizes, settings=part, folder=place, listener=heard))
    whole = Curve.joined([found for found in group.gather(mine) if found is not None])
    first = whole.evaluations[0]
    own = threat if sizes is None else replace(threat, eps=ascending(sizes)[0])
    flags: Any = None
    if group.first:
        late = bool(first.result.undecided.any())
        flags = () if late else add_probes(first, f, data, own, preset, settings=settings).probes
    whole = Curve((replace(first, probes=group.gather(flags)[0]), *whole.evaluations[1:]))
    if folder is not None and group.first:
        write_json(folder / RECORD, (whole.evaluations[0] if sizes is None else whole).to_dict())
    group.wait()
    return whole


def _curve(found: Evaluation | Curve) -> Curve:
    return found if isinstance(found, Curve) else Curve((found,))
