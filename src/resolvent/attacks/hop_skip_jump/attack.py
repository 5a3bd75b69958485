"""HopSkipJump (Chen, Jordan & Wainwright 2020): it uses only the predicted class, no scores, no gradients.

From a misclassified point a line search finds the boundary on the way to x; predictions at random points around the
boundary point estimate its normal (eq. 16); a jump along it (geometrically smaller until it is misclassified) and the
next line search bring the point closer to x.

Everything happens in v = (point - x) / scale, where a threat with an eps per channel is an ordinary ball. Random
numbers belong to a sample: its result does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.hop_skip_jump.boundary import Boundary
from resolvent.attacks.objective.objective import margin
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.threat import Threat
from resolvent.usage.numbers import check_count


@dataclass(frozen=True)
class HopSkipJump(Opened):
    """`HopSkipJump()(f, x, y, Threat("l2", 1.0))`, or "linf".

    iterations  jumps from boundary point to boundary point
    queries     predictions that estimate the first normal; their number grows with the square root of the iteration
    starts      random points tried to find a misclassified one
    minimal     True: return the nearest misclassified point, whatever the threat's eps, and call it a success only
                within eps; False: a sample stops at eps, and keeps x if it does not reach it

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.attacks.HopSkipJump(iterations=1, queries=5)(f, x, y, rv.Threat("l2", 1.0))
        >>> int(found.gradients.sum())
        0
    """

    name: ClassVar[str] = "hop-skip-jump"
    least: ClassVar[dict[str, int]] = {"iterations": 1, "queries": 1, "starts": 1}
    iterations: int = 30
    queries: int = 100
    starts: int = 50
    minimal: bool = False

    def run(self, opening: Opening) -> AttackResult:
        opening.require_classes("HopSkipJump")
        rows = opening.rows
        if rows.threat.norm == "l1":
            raise ValueError('HopSkipJump: the norm must be "linf" or "l2", got "l1".')
        found = Strongest(rows)
        with torch.no_grad():
            logits = opening.look(found)
            found.offer(opening.everyone, rows.x, margin(logits, rows.y), logits)
            standing = opening.everyone[~found.wrong]
            if standing.numel():
                self._attack(opening, found, standing)
        return found.result(self.name)

    def _attack(self, opening: Opening, found: Strongest, at: Tensor) -> None:
        boundary = Boundary(opening.victim, opening.rows.select(at), found, at)
        boundary.start(self.starts)
        for i in range(1, self.iterations + 1):
            if not self.minimal:
                boundary.leave(boundary.distance <= boundary.eps)
            if not len(boundary.at):
                break
            boundary.jump(i, round(self.queries * i**0.5))
        boundary.leave(torch.ones_like(boundary.at, dtype=torch.bool), beyond=self.minimal)


def hop_skip_jump(
    f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any
) -> AttackResult:
    """`hop_skip_jump(f, x, y, threat, iterations=50)`: the fields of `HopSkipJump` as keywords, and `lengths`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.hop_skip_jump(f, x, y, rv.Threat("l2", 1.0), iterations=1, queries=5).x_adv.shape
        torch.Size([4, 3])
    """
    return HopSkipJump.attack(f, x, y, threat, draws=draws, **settings)


def answers_as_logits(f: Callable[..., Tensor], classes: int) -> Callable[..., Tensor]:
    """A model that returns class numbers (b,) as one with logits (b, classes): 1 for the predicted class, else 0.

    Examples:
        >>> f = rv.attacks.answers_as_logits(lambda x: (x > 0.5).long(), classes=2)
        >>> f(torch.tensor([0.2, 0.9]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    check_count("answers_as_logits", 2, classes=classes)

    def logits(x: Tensor, *lengths: Tensor) -> Tensor:
        answer = f(x, *lengths)
        if not isinstance(answer, Tensor) or answer.is_floating_point() or answer.shape != x.shape[:1]:
            got = f"{answer.dtype} {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
            raise ValueError(f"answers_as_logits: the model must return class numbers ({len(x)},), got {got}.")
        return torch.nn.functional.one_hot(answer.long(), classes).float()

    return logits
