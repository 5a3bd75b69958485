"""What a run trains for and against, as plain values: they survive JSON and make the objective when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resolvent.attacks import Threat
from resolvent.attacks.pgd import PGD
from resolvent.data.task import Bounds
from resolvent.models.settings import Settings
from resolvent.training import Probe, noisy, pgd_at, spread, standard, trades
from resolvent.training.criterion import criterion
from resolvent.training.objective import Objective

Kind = Literal["standard", "pgd-at", "trades"]
NormName = Literal["linf", "l2", "l1"]


@dataclass(frozen=True)
class Goal(Settings):
    """The objective, and the threat of its inner attack; standard training is only measured under that threat.

    eps None: no attack at all, neither in training nor in the measurements
    noise     deviation of normal noise on every training sample, for standard training
    spread    add the penalty that keeps answers from collapsing to one
    """

    kind: Kind = "standard"
    norm: NormName = "linf"
    eps: float | None = None
    steps: int = 10
    step_size: float | None = None
    beta: float = 6.0
    noise: float = 0.0
    spread: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "standard" and self.eps is None:
            raise ValueError(f"Goal: {self.kind} needs eps, the size of what it trains against; give one.")
        if self.kind != "standard" and self.noise:
            raise ValueError(f"Goal: noise goes with standard training, not with {self.kind}; leave it at 0.")

    def threat(self, bounds: Bounds | None) -> Threat | None:
        return None if self.eps is None else Threat(self.norm, self.eps, bounds)

    def objective(self, bounds: Bounds | None) -> Objective:
        return spread(self._plain(bounds)) if self.spread else self._plain(bounds)

    def _plain(self, bounds: Bounds | None) -> Objective:
        threat = self.threat(bounds)
        if self.kind == "standard" or threat is None:
            return noisy(self.noise) if self.noise else standard
        if self.kind == "pgd-at":
            return pgd_at(threat, steps=self.steps, step_size=self.step_size)
        return trades(threat, self.beta, steps=self.steps, step_size=self.step_size)

    def probe(self, bounds: Bounds | None) -> Probe | None:
        """PGD-10 from a random start, the papers' yardstick during training."""
        threat = self.threat(bounds)
        return None if threat is None else Probe(threat, PGD(10, self.step_size, objective=criterion))
