"""The samples under attack, with input checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.checks import check_classes
from resolvent.attacks.draws import Draws
from resolvent.attacks.threat.channels import working_dtype
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples with all their data; `labels` are the objective's arguments after the logits."""

    x: Tensor  # (b, ...)
    y: Tensor  # (b,)
    labels: tuple[Tensor, ...]  # each (b, ...)
    threat: Threat
    draws: Draws
    lengths: Tensor | None = None  # (b,) of padded sequences, also passed to the model
    target: Tensor | None = None  # (b,) the target class; None: any but y

    def __len__(self) -> int:
        return self.x.shape[0]

    def against(self, *labels: Tensor) -> Rows:
        return replace(self, labels=labels)

    def select(self, index: Tensor) -> Rows:
        labels = tuple(label[index] for label in self.labels)
        lengths, target = (None if v is None else v[index] for v in (self.lengths, self.target))
        threat, draws = self.threat.select(index), self.draws.select(index)
        return Rows(self.x[index], self.y[index], labels, threat, draws, lengths, target)

    def aimed(self, target: Any) -> Rows:
        """The same with a target class (a number, or one for each sample), which alone counts as success."""
        aim = torch.as_tensor(target, device=self.y.device)
        if aim.is_floating_point() or aim.dtype == torch.bool or aim.shape not in ((), self.y.shape):
            raise ValueError(
                f"attack: target must be a class number or ({len(self)},) of them, got {aim.dtype} {tuple(aim.shape)}."
            )
        if not is_label(self.y):
            raise TypeError(f"attack: a target goes with class labels, got y of {self.y.dtype}.")
        aim = aim.long().expand(len(self))
        if bool((aim == self.y).any()):
            raise ValueError("attack: the target of a sample must be another class than its own; leave those out.")
        return replace(self, target=aim, labels=(self.y, aim))


def prepare(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    draws: Draws | None,
    lengths: Tensor | None = None,
) -> tuple[Victim, Rows]:
    """Check the arguments; x in float32 at least."""
    x, y = usable(x), usable(y)
    threat = fit_threat(threat, x, lengths)
    if not isinstance(y, Tensor) or y.shape[:1] != x.shape[:1]:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"attack: y must be a tensor with one entry per sample ({x.shape[0]}), got {got}.")
    if y.is_complex() or (is_label(y) and y.dim() != 1):
        raise ValueError(f"attack: labels must be whole numbers ({x.shape[0]},), got {y.dtype} {tuple(y.shape)}.")
    draws = Draws.of(x) if draws is None else draws.to(x.device)
    if len(draws) != x.shape[0]:
        raise ValueError(f"attack: draws must number {x.shape[0]} samples, got {len(draws)}; use Draws.of(x, seed).")
    x = x.detach().to(working_dtype(x))
    y = y.long() if is_label(y) else y
    lengths = None if lengths is None else lengths.to(x.device)
    return Victim.of(f), Rows(x, y, (y,), threat, draws, lengths)


def fit_threat(threat: Threat, x: Tensor, lengths: Tensor | None) -> Threat:
    """The threat fitted to x; with lengths (b,) padding is excluded."""
    if lengths is None:
        return threat.check(x)
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.shape != x.shape[:1] or x.dim() < 3:
        got = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(
            f"attack: lengths must be whole numbers ({x.shape[0]},) that go with x (b, l, ...), got {got} with x "
            f"{tuple(x.shape)}."
        )
    low, high = int(lengths.min()), int(lengths.max())
    if low < 1 or high > x.shape[1]:
        raise ValueError(f"attack: lengths must lie in 1 .. {x.shape[1]}, got {low} .. {high}.")
    return threat.with_lengths(lengths.to(x.device), x.shape[1]).check(x)


def usable(value: Any) -> Any:
    """A tensor that autograd may keep: one from inference mode is copied."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def is_label(y: Tensor) -> bool:
    """Integers are classes; anything else is a regression target, which cannot be misclassified."""
    return not y.is_floating_point()


def check_logits(logits: Tensor, y: Tensor, target: Tensor | None = None) -> None:
    if not is_label(y):
        return
    check_classes("attack", logits, y)
    if target is not None and target.numel() and (int(target.min()) < 0 or int(target.max()) >= logits.shape[1]):
        raise ValueError(f"attack: targets must lie in 0 .. {logits.shape[1] - 1}, got {target.unique().tolist()}.")
