"""The result of an attack, one entry per sample, and the interface of attacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.threat.threat import Threat


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The points found; `loss`, `margin` and `success` belong to `x_adv` itself.

    A sample whose attack failed has the strongest point visited. `margin` is max_{j != y} z_j - z_y: positive
    when misclassified. Points where the model returned NaN are never kept; the sample is marked in `non_finite`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.attacks.pgd(f, x, y, threat, steps=5)
        >>> found.x_adv.shape, found.success.dtype
        (torch.Size([4, 3]), torch.bool)
    """

    x_adv: Tensor  # (b, ...)
    success: Tensor  # (b,) bool: misclassified (always False when y is not a label)
    loss: Tensor  # (b,) objective at x_adv
    margin: Tensor  # (b,)
    norm: Tensor  # (b,) of x_adv - x in the threat's norm
    queries: Tensor  # (b,) int64: forward passes of this sample
    gradients: Tensor  # (b,) int64: backward passes of this sample
    zero_gradient: Tensor  # (b,) bool: the first gradient was exactly zero wherever the threat may act
    non_finite: Tensor  # (b,) bool: an output or a gradient had NaN or infinity
    name: str
    notes: tuple[str, ...] = ()  # e.g. an objective replaced because of too few classes

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the problems of at least one sample."""
        wrong = {"zero_gradient": self.zero_gradient, "non_finite": self.non_finite}
        return tuple(name for name, where in wrong.items() if bool(where.any()))

    def __len__(self) -> int:
        return self.success.shape[0]

    def select(self, index: Tensor) -> AttackResult:
        return self._map(lambda t: t[index])

    def to(self, device: torch.device | str) -> AttackResult:
        return self._map(lambda t: t.to(device))

    @staticmethod
    def cat(results: Sequence[AttackResult]) -> AttackResult:
        """Batches of one attack, joined in order."""
        if not results:
            raise ValueError("AttackResult.cat: expected at least one result, got none.")
        notes = tuple(dict.fromkeys(note for r in results for note in r.notes))
        tensors = {n: torch.cat([getattr(r, n) for r in results]) for n in _tensor_fields()}
        return AttackResult(**tensors, name=results[0].name, notes=notes)

    def _map(self, change: Callable[[Tensor], Tensor]) -> AttackResult:
        return AttackResult(**{n: change(getattr(self, n)) for n in _tensor_fields()}, name=self.name, notes=self.notes)


def _tensor_fields() -> list[str]:
    return [f.name for f in fields(AttackResult) if f.name not in ("name", "notes")]


class Attack(Protocol):
    """Callable settings: `PGD(steps=20)(f, x, y, threat, draws=draws)`.

    f maps (b, ...) to logits (b, classes); or is a `Victim`. `clean_logits` saves the forward pass at x.
    For padded samples `lengths` (b,) is passed, and f is called as f(x, lengths).

    Examples:
        >>> attack: rv.attacks.Attack = rv.PGD(steps=20)
        >>> callable(attack)
        True
    """

    @property
    def name(self) -> str: ...

    def __call__(
        self, f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None,
        clean_logits: Tensor | None = None, lengths: Tensor | None = None,
    ) -> AttackResult: ...  # fmt: skip
