"""A whole evaluation: AutoAttack, a record per sample, probes for masked gradients, everything kept in one folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from resolvent.attacks.autoattack.attack import config, describe_threat, judge_job, prepare
from resolvent.attacks.autoattack.board import Fallen
from resolvent.attacks.autoattack.curve import Curve, ascending, place_of
from resolvent.attacks.autoattack.evaluation import Evaluation
from resolvent.attacks.autoattack.masking import probes
from resolvent.attacks.autoattack.presets import Preset
from resolvent.attacks.autoattack.rounds import Listener
from resolvent.attacks.autoattack.store import Store
from resolvent.attacks.checks import gather
from resolvent.attacks.rows import fit_threat
from resolvent.attacks.threat.threat import Sizes, Threat
from resolvent.attacks.victim import Victim
from resolvent.disk import write_json
from resolvent.usage.numbers import Counted, check_count, check_positive

RECORD = "record.json"


@dataclass(frozen=True)
class EvaluationSettings(Counted):
    """How an evaluation is done.

    seed        determines, with a sample's id, all its random numbers
    batch_size  most samples passed through the model at once
    samples     use only this many first samples; None: all
    shard       (i, k): this is process i of k and takes every k-th sample; see `Evaluation.joined`
    probe       number of samples for the masked-gradient probes; 0: none
    limit       seconds after which no batch is started; remaining samples are `undecided`. None: no limit

    Examples:
        >>> rv.attacks.EvaluationSettings(limit=60.0).limit
        60.0
    """

    least: ClassVar[dict[str, int]] = {"seed": 0, "batch_size": 1, "samples": 1, "probe": 0}
    seed: int = 0
    batch_size: int | None = 256
    samples: int | None = None
    shard: tuple[int, int] = (0, 1)
    probe: int = 256
    limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "evaluate"
        if self.limit is not None:
            check_positive(where, limit=self.limit)
        if not isinstance(self.shard, tuple | list) or len(self.shard) != 2:
            raise TypeError(f"{where}: shard must be a pair (i, k): number i of k processes; got {self.shard!r}.")
        i, k = self.shard
        check_count(where, 1, **{"the number of shards": k})
        check_count(where, 0, **{"the shard": i})
        if i >= k:
            raise ValueError(f"{where}: shard must be (i, k) with i < k, got {self.shard}; count from 0.")


@overload
def evaluate(
    f: Callable[..., Tensor], data: Any, threat: Threat, preset: Preset = "standard", *, eps: None = None,
    settings: EvaluationSettings | None = None, folder: str | Path | None = None,
    surrogate: Callable[[Tensor], Tensor] | None = None, listener: Listener | None = None,
) -> Evaluation: ...  # fmt: skip
@overload
def evaluate(
    f: Callable[..., Tensor], data: Any, threat: Threat, preset: Preset = "standard", *, eps: Sequence[Sizes],
    settings: EvaluationSettings | None = None, folder: str | Path | None = None,
    surrogate: Callable[[Tensor], Tensor] | None = None, listener: Listener | None = None,
) -> Curve: ...  # fmt: skip
def evaluate(
    f: Callable[..., Tensor], data: Any, threat: Threat, preset: Preset = "standard", *,
    eps: Sequence[Sizes] | None = None, settings: EvaluationSettings | None = None, folder: str | Path | None = None,
    surrogate: Callable[[Tensor], Tensor] | None = None, listener: Listener | None = None,
) -> Evaluation | Curve:  # fmt: skip
    """Attack f on `data`: (x, y), (x, y, lengths) for padded x, or a loader of such batches.

    With lengths f is called as f(x, lengths). Per-sample eps and masks follow the order of the samples.

    `eps` is a list of sizes that replace the threat's: the result is a `Curve`, computed from the smallest to
    the largest, where a broken sample is not attacked again.

    `folder` stores every finished batch (a killed or timed-out evaluation resumes to the same result;
    another configuration is refused) and, at the end, record.json. With a `surrogate`, points found on that model are
    tried on f as well.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> list(rv.evaluate(f, (x, y), threat, "fast", eps=[0.05, 0.1]).eps)
        [0.05, 0.1]
    """
    chosen = EvaluationSettings() if settings is None else settings
    deadline = None if chosen.limit is None else time.monotonic() + chosen.limit
    x, y, lengths = gather("evaluate", data, chosen.samples)
    threats = [threat] if eps is None else [replace(threat, eps=size) for size in ascending(eps)]
    job, seen = prepare(Victim(f, chosen.batch_size), x, y, threats[-1], preset, seed=chosen.seed, lengths=lengths)
    rows, found, before = _shard(x, chosen.shard), [], None
    for number, own in enumerate(threats):
        place = None if folder is None else Path(folder) if eps is None else Path(folder) / place_of(own.eps)
        fitting = replace(job, threat=fit_threat(own, job.x, lengths), listener=listener)
        fitting = replace(fitting, threat_values=describe_threat(own))
        part = replace(fitting.select(rows), fallen=before, deadline=deadline)
        store = None if place is None else Store(place, config(part))
        result = judge_job(replace(part, store=store), preset, seen)
        probed = () if number or part.late else probes(part, result.clean_prediction == part.y, surrogate, chosen.probe)
        found.append(Evaluation(result, part.y, probed))
        if store is not None:
            store.write_json(RECORD, found[-1].to_dict())
        before = Fallen(result.broken_by, result.x_adv, result.margin)
    if eps is None:
        return found[0]
    curve = Curve(tuple(found))
    if folder is not None:
        write_json(Path(folder) / RECORD, curve.to_dict())
    return curve


def add_probes(
    evaluation: Evaluation,
    f: Callable[..., Tensor],
    data: Any,
    threat: Threat,
    preset: Preset = "standard",
    *,
    settings: EvaluationSettings | None = None,
) -> Evaluation:
    """A joined evaluation with the probes of a single-process run: they need the whole set."""
    chosen = EvaluationSettings() if settings is None else settings
    x, y, lengths = gather("evaluate", data, chosen.samples)
    job, _ = prepare(Victim(f, chosen.batch_size), x, y, threat, preset, seed=chosen.seed, lengths=lengths)
    right = evaluation.result.clean_prediction == job.y
    return replace(evaluation, probes=probes(job, right, None, chosen.probe))


def _shard(x: Tensor, shard: tuple[int, int]) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device)[shard[0] :: shard[1]]
    if not len(rows):
        raise ValueError(f"evaluate: shard {shard} is empty: there are {x.shape[0]} samples; use fewer shards.")
    return rows
