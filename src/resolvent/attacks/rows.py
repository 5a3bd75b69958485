"""The samples that an attack works on, checked at the border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.model import Victim
from resolvent.attacks.threat import Threat

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples with everything that is theirs; `labels` is what the objective takes after the logits."""

    x: Tensor  # (b, ...)
    y: Tensor  # (b,)
    labels: tuple[Tensor, ...]  # each (b, ...)
    threat: Threat
    draws: Draws

    def __len__(self) -> int:
        return self.x.shape[0]

    def against(self, *labels: Tensor) -> Rows:
        return Rows(self.x, self.y, labels, self.threat, self.draws)

    def select(self, index: Tensor) -> Rows:
        labels = tuple(label[index] for label in self.labels)
        return Rows(self.x[index], self.y[index], labels, self.threat.select(index), self.draws.select(index))


def prepare(
    f: Callable[[Tensor], Tensor] | Victim, x: Tensor, y: Tensor, threat: Threat, draws: Draws | None
) -> tuple[Victim, Rows]:
    """Check what the caller gave, in float32 at least."""
    threat = threat.check(x)
    if not isinstance(y, Tensor) or y.shape[:1] != x.shape[:1]:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"attack: y must be a tensor with one entry per sample ({x.shape[0]}), got {got}.")
    if is_label(y) and y.dim() != 1:
        raise ValueError(f"attack: labels must be ({x.shape[0]},), got {tuple(y.shape)}.")
    draws = Draws.of(x) if draws is None else draws.to(x.device)
    if len(draws) != x.shape[0]:
        raise ValueError(f"attack: draws must number {x.shape[0]} samples, got {len(draws)}; use Draws.of(x, seed).")
    x = x.detach().float() if x.dtype in _HALF else x.detach()
    y = y.long() if is_label(y) else y
    return Victim.of(f), Rows(x, y, (y,), threat, draws)


def is_label(y: Tensor) -> bool:
    """Whole numbers are classes; anything else is a regression target, which cannot be misclassified."""
    return not y.is_floating_point()


def check_logits(logits: Tensor, y: Tensor) -> None:
    if not is_label(y):
        return
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(f"attack: expected logits (b, classes) with at least 2 classes, got {tuple(logits.shape)}.")
    if y.numel() and (int(y.min()) < 0 or int(y.max()) >= logits.shape[1]):
        raise ValueError(
            f"attack: labels must lie in 0 .. {logits.shape[1] - 1} (the model has {logits.shape[1]} outputs), "
            f"got {int(y.min())} .. {int(y.max())}."
        )
