"""A whole evaluation: AutoAttack, a record per sample, probes for masked gradients, everything kept in one folder.

report = evaluate(model, loader, Threat("linf", 8 / 255, bounds=(0, 1)), folder="out/evaluation")
print(report)
report.records[3]      # clean prediction, first attack that broke it, margin, norm, queries, seed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.autoattack import AutoAttackResult, config, judged, prepare
from resolvent.attacks.border import check_count, gather
from resolvent.attacks.flags import Flag
from resolvent.attacks.masking import probes
from resolvent.attacks.model import Victim
from resolvent.attacks.presets import Preset
from resolvent.attacks.rounds import Listener
from resolvent.attacks.store import Store
from resolvent.attacks.summary import summary
from resolvent.attacks.threat import Threat

RECORD = "record.json"


@dataclass(frozen=True)
class EvaluationSettings:
    """How an evaluation is done.

    seed        with a sample's id it fixes all random numbers of that sample
    batch_size  at most so many samples pass through the model at once
    samples     only the first so many; None: all
    shard       (i, k): of k processes this is number i and takes every k-th sample; see `Evaluation.joined`
    probe       samples on which masked gradients are looked for; 0: none
    """

    seed: int = 0
    batch_size: int | None = 256
    samples: int | None = None
    shard: tuple[int, int] = (0, 1)
    probe: int = 256

    def __post_init__(self) -> None:
        where = "evaluate"
        check_count(where, "seed", self.seed, least=0)
        check_count(where, "probe", self.probe, least=0)
        for name in ("batch_size", "samples"):
            if getattr(self, name) is not None:
                check_count(where, name, getattr(self, name))
        if not isinstance(self.shard, tuple | list) or len(self.shard) != 2:
            raise TypeError(f"{where}: shard must be a pair (i, k): number i of k processes; got {self.shard!r}.")
        i, k = self.shard
        check_count(where, "the number of shards", k)
        check_count(where, "the shard", i, least=0)
        if i >= k:
            raise ValueError(f"{where}: shard must be (i, k) with i < k, got {self.shard}; count from 0.")


@dataclass(frozen=True)
class Record:
    """What happened to one sample."""

    index: int
    label: int
    clean_prediction: int
    prediction: int  # at the perturbed input
    broken_by: str | None  # "clean", the first attack that broke it, or None
    margin: float  # of the perturbed input; positive when misclassified
    norm: float  # of the perturbation
    queries: int
    gradients: int
    seed: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outcome of AutoAttack with its records; `flags` holds those of the probes too."""

    result: AutoAttackResult
    labels: Tensor  # (n,)
    probes: tuple[Flag, ...] = ()

    @property
    def flags(self) -> tuple[Flag, ...]:
        return self.result.flags + self.probes

    @property
    def accuracy(self) -> float:
        return self.result.accuracy

    @property
    def clean_accuracy(self) -> float:
        return self.result.clean_accuracy

    @property
    def records(self) -> tuple[Record, ...]:
        r = self.result
        columns = [r.index, self.labels, r.clean_prediction, r.prediction, r.margin, r.norm, r.queries, r.gradients]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return tuple(
            Record(i, y, clean, now, r.broken_by_name(k), gap, norm, queries, gradients, r.seed)
            for k, (i, y, clean, now, gap, norm, queries, gradients) in enumerate(rows)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        r = self.result
        return {
            "preset": r.preset,
            "threat": r.threat,
            "attacks": list(r.attacks),
            "seed": r.seed,
            "samples": len(r),
            "clean_accuracy": r.clean_accuracy,
            "accuracy": r.accuracy,
            "standard_error": r.deviation,
            "table": r.table,
            "flags": [asdict(flag) for flag in self.flags],
            "records": [asdict(record) for record in self.records],
        }

    def __str__(self) -> str:
        return summary(self.result, self.flags)

    @staticmethod
    def joined(parts: list[Evaluation]) -> Evaluation:
        """The shards of several processes as one evaluation, in the order of the samples; for probes see `probed`."""
        result = AutoAttackResult.joined([p.result for p in parts])
        order = torch.cat([p.result.index for p in parts]).argsort()
        probes = tuple(dict.fromkeys(flag for p in parts for flag in p.probes))
        return Evaluation(result, torch.cat([p.labels for p in parts])[order], probes)


def evaluate(
    f: Callable[..., Tensor],
    data: Any,
    threat: Threat,
    preset: Preset = "standard",
    *,
    settings: EvaluationSettings | None = None,
    folder: str | Path | None = None,
    surrogate: Callable[[Tensor], Tensor] | None = None,
    listener: Listener | None = None,
) -> Evaluation:
    """Attack f on `data`: (x, y), (x, y, lengths) for padded x, or a loader of such batches.

    With lengths f is called as f(x, lengths). Per-sample eps and masks follow the order of the samples.

    `folder` keeps every finished batch (a killed evaluation goes on to the same result; another configuration is
    refused) and, at the end, record.json. With a `surrogate`, points found on that model are tried on f as well.
    """
    chosen = EvaluationSettings() if settings is None else settings
    x, y, lengths = gather("evaluate", data, chosen.samples)
    victim = Victim(f, chosen.batch_size)
    job, seen = prepare(victim, x, y, threat, preset, seed=chosen.seed, lengths=lengths)
    job = replace(job.select(_shard(x, chosen.shard)), listener=listener)
    store = None if folder is None else Store(folder, config(job))
    result = judged(replace(job, store=store), preset, seen)
    right = result.clean_prediction == job.y
    evaluation = Evaluation(result, job.y, probes(job, right, surrogate, chosen.probe))
    if store is not None:
        store.write_json(RECORD, evaluation.to_dict())
    return evaluation


def probed(
    evaluation: Evaluation,
    f: Callable[..., Tensor],
    data: Any,
    threat: Threat,
    preset: Preset = "standard",
    *,
    settings: EvaluationSettings | None = None,
) -> Evaluation:
    """A joined evaluation with the probes that a single process would have made: they need the whole set."""
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
