"""The result of AutoAttack, one entry per sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.autoattack.board import STANDS
from resolvent.attacks.autoattack.doubts import Doubts
from resolvent.attacks.autoattack.flags import Flag


@dataclass(frozen=True, eq=False)
class AutoAttackResult:
    """Per sample (n,), in the order given. `stages` is ("clean", first attack, ...); `broken_by` indexes it.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.autoattack(f, x, y, threat, preset="fast")
        >>> found.accuracy <= found.clean_accuracy
        True
    """

    robust: Tensor  # bool: correct on the clean input and after every attack
    undecided: Tensor  # bool: unbroken when time ran out, with attacks still to run
    x_adv: Tensor  # (n, ...): what broke the sample, or the strongest attempt; x where x itself is misclassified
    broken_by: Tensor  # int64: index into stages; -1 for robust samples
    clean_prediction: Tensor  # int64
    prediction: Tensor  # int64, at x_adv, recomputed
    margin: Tensor  # max_{j != y} z_j - z_y at x_adv, recomputed
    norm: Tensor  # of x_adv - x
    queries: Tensor  # int64 forward passes
    gradients: Tensor  # int64 backward passes
    index: Tensor  # int64 global ids: with the seed they determine the sample's random numbers
    stages: tuple[str, ...]
    attacks: tuple[dict[str, Any], ...]  # every setting of every attack, as plain values
    threat: dict[str, Any]
    preset: str
    seed: int
    doubts: Doubts
    done: dict[str, tuple[int, int]]  # per attack that ran: samples attacked, samples to attack

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Every reason for doubt found."""
        return self.doubts.flags(self.table)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is normal but worth knowing, such as a loss that few classes leave undefined and another replaces."""
        return self.doubts.notes

    @property
    def accuracy(self) -> float:
        """Share of the samples that resist every attack; the lower end of `bracket` if time ran out."""
        return float(self.robust.double().mean())

    @property
    def bracket(self) -> tuple[float, float]:
        """Lower and upper end of the robust accuracy: counting undecided samples as broken, and as robust."""
        return self.accuracy, float((self.broken_by == STANDS).double().mean())

    @property
    def clean_accuracy(self) -> float:
        return self.table["clean"]

    @property
    def table(self) -> dict[str, float]:
        """Accuracy after each stage; under the worst of all attacks so far."""
        stands = self.broken_by == STANDS
        return {n: float((stands | (self.broken_by > k)).double().mean()) for k, n in enumerate(self.stages)}

    @property
    def deviation(self) -> float:
        """Standard error of the accuracy as an estimate for the whole distribution."""
        return standard_error(self.accuracy, len(self))

    def broken_by_name(self, sample: int) -> str | None:
        """The name "clean", that of the attack, or None for a robust sample."""
        stage = int(self.broken_by[sample])
        return None if stage == STANDS else self.stages[stage]

    def __len__(self) -> int:
        return self.robust.shape[0]

    def __str__(self) -> str:
        from resolvent.attacks.autoattack.summary import summary

        return summary(self, self.flags)

    @staticmethod
    def joined(parts: list[AutoAttackResult]) -> AutoAttackResult:
        """The parts of several processes as one, in the order of the global ids."""
        if not parts:
            raise ValueError("AutoAttackResult.joined: expected at least one part, got none.")
        first = parts[0]
        if any((p.seed, p.attacks, p.stages) != (first.seed, first.attacks, first.stages) for p in parts):
            raise ValueError("AutoAttackResult.joined: the parts differ in attacks or seed; run them with the same.")
        order = torch.cat([p.index for p in parts]).argsort()
        tensors = [f.name for f in fields(first) if isinstance(getattr(first, f.name), Tensor)]
        joined: dict[str, Any] = {n: torch.cat([getattr(p, n) for p in parts])[order] for n in tensors}
        return replace(first, **joined, doubts=Doubts.joined([p.doubts for p in parts]), done=_sum_counts(parts))


def standard_error(share: float, n: int) -> float:
    """Standard error of a share of n samples; at least that of one in n, since few unbroken samples prove little."""
    p = min(max(share, 1 / n), 1 - 1 / n) if n > 1 else 0.5
    return math.sqrt(p * (1 - p) / max(n, 1))


def _sum_counts(parts: list[AutoAttackResult]) -> dict[str, tuple[int, int]]:
    names = dict.fromkeys(name for part in parts for name in part.done)
    found = {name: [part.done[name] for part in parts if name in part.done] for name in names}
    return {name: (sum(had for had, _ in each), sum(of for _, of in each)) for name, each in found.items()}
