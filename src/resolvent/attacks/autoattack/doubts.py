"""Observations that cast doubt on a result, per sample: shards of several processes combine to one list of flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.autoattack import flags as doubt
from resolvent.attacks.autoattack.flags import Flag


@dataclass(frozen=True, eq=False)
class Doubts:
    tried: Tensor  # (n,) bool: attacked at all
    zero_gradient: Tensor  # (n,) bool
    non_finite: Tensor  # (n,) bool
    moved: Tensor  # (n,) bool: the verdict depends on rounding
    notes: tuple[str, ...] = ()  # of the attacks: no doubts, so no flags
    seen: tuple[Flag, ...] = ()  # flags raised before any attack, on the first samples of the whole set

    def flags(self, table: Mapping[str, float]) -> tuple[Flag, ...]:
        """`table` is the accuracy after each stage."""
        raised = [
            *self.seen,
            doubt.nothing_right(table, self.tried.numel()),
            doubt.zero_gradients(self.zero_gradient[self.tried]),
            doubt.non_finite(self.non_finite[self.tried]),
            doubt.square_wins(table, self.tried.numel()),
            doubt.borderline(int(self.moved.sum()), self.tried.numel()),
        ]
        return doubt.present(raised)

    @staticmethod
    def joined(parts: Sequence[Doubts]) -> Doubts:
        """The order of the samples does not matter: flags only count."""
        tried, zero, wild, moved = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("tried", "zero_gradient", "non_finite", "moved")
        )
        notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        seen = tuple(dict.fromkeys(flag for part in parts for flag in part.seen))
        return Doubts(tried, zero, wild, moved, notes, seen)
