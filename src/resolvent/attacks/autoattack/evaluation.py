"""The result of a whole evaluation: AutoAttack's result, a record for each sample, and the probes' flags."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.autoattack.flags import Flag
from resolvent.attacks.autoattack.outcome import AutoAttackResult
from resolvent.attacks.autoattack.summary import summary


@dataclass(frozen=True)
class Record:
    """The result of one sample."""

    index: int
    label: int
    clean_prediction: int
    prediction: int  # at the perturbed input
    broken_by: str | None  # "clean", the first attack that broke it, or None
    undecided: bool  # not broken, but time ran out before every attack was tried
    margin: float  # of the perturbed input; positive when misclassified
    norm: float  # of the perturbation
    queries: int
    gradients: int
    seed: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outcome of AutoAttack with its records; `flags` includes those of the probes.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.evaluate(f, (x, y), threat, "fast").labels.shape
        torch.Size([4])
    """

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
    def bracket(self) -> tuple[float, float]:
        return self.result.bracket

    @property
    def records(self) -> tuple[Record, ...]:
        r = self.result
        columns = [r.index, self.labels, r.clean_prediction, r.prediction, r.margin, r.norm, r.queries, r.gradients]
        columns.append(r.undecided)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return tuple(
            Record(i, y, clean, now, r.broken_by_name(k), undecided, gap, norm, queries, gradients, r.seed)
            for k, (i, y, clean, now, gap, norm, queries, gradients, undecided) in enumerate(rows)
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
            "bracket": list(r.bracket),
            "undecided": int(r.undecided.sum()),
            "table": r.table,
            "flags": [asdict(flag) for flag in self.flags],
            "notes": list(r.notes),
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
