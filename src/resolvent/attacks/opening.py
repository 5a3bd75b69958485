"""The common start of every attack: check the arguments, set up the model, and evaluate the outputs at x."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows, check_logits, is_label, prepare, usable
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted

CALLED = ("draws", "clean_logits", "labels", "lengths", "target")  # what a call takes beside samples and threat


@dataclass(frozen=True, eq=False)
class Opening:
    """The model and the samples, ready to be attacked."""

    victim: Victim
    rows: Rows
    clean_logits: Tensor | None

    @property
    def everyone(self) -> Tensor:
        """The indices of the samples: (b,)."""
        return torch.arange(len(self.rows), device=self.rows.x.device)

    def look(self, found: Strongest) -> Tensor:
        """Outputs at x, for one query unless they were given; checks that labels fit them."""
        logits = self.clean_logits
        if logits is None:
            logits = self.victim.forward(self.rows.x, self.rows.lengths)
            found.count(self.everyone, 1, backward=False)
        if len(logits) != len(self.rows):
            raise ValueError(
                f"attack: clean_logits must hold one row per sample ({len(self.rows)}), got {tuple(logits.shape)}."
            )
        check_logits(logits, self.rows.y)
        return logits

    def require_classes(self, who: str) -> None:
        if not is_label(self.rows.y):
            raise TypeError(f"{who}: y must hold class labels (whole numbers), got {self.rows.y.dtype}.")


class Opened(Counted, ABC):
    """Attack settings that can be called; a concrete attack has fields, a name and `run`.

    `shapes`: it uses the threat's own directions and projections, so that it supports steps and band constraints.
    `aims`: it supports a target. `least` are the smallest values of its counts.
    """

    shapes: ClassVar[bool] = False
    aims: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def run(self, opening: Opening) -> AttackResult:
        """The attack itself, with the model in evaluation mode."""

    @classmethod
    def attack(cls, f: Any, x: Tensor, y: Tensor, threat: Threat, **given: Any) -> AttackResult:
        """Made of its own keywords and called with the rest: `PGD.attack(f, x, y, threat, steps=20, lengths=n)`."""
        called = {name: given.pop(name) for name in CALLED if name in given}
        return cls(**given)(f, x, y, threat, **called)

    def __call__(
        self,
        f: Callable[..., Tensor] | Victim,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        draws: Draws | None = None,
        clean_logits: Tensor | None = None,
        labels: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
        target: Tensor | int | None = None,
    ) -> AttackResult:
        """Attack f at x (b, ...) with labels y (b,).

        clean_logits  outputs at x, if they are known
        labels        replaces (y,) after the outputs in the objective, e.g. (clean_logits,) for `kl`
        lengths       (b,) of padded x (b, l, ...): f is called as f(x, lengths), and padding is not changed
        target        a class, or one for each sample: success then means exactly this prediction
        """
        # The passes need gradients; in inference mode they would silently get none.
        with torch.inference_mode(False), torch.no_grad():
            victim, rows = prepare(f, x, y, threat, draws, lengths)
            rows = rows if labels is None else rows.against(*map(usable, labels))
            if rows.threat.shaped and not self.shapes:
                raise ValueError(
                    f"{self.name} searches whole balls and knows no budget of time steps or band of frequencies; use "
                    "PGD, APGD or SparseSteps."
                )
            if target is not None:
                if not self.aims or labels is not None:
                    raise ValueError(f"{self.name} takes no target here; use PGD(...)(f, x, y, threat, target=...).")
                rows = rows.aimed(target)
            with victim.attacked():
                return self.run(Opening(victim, rows, clean_logits))
