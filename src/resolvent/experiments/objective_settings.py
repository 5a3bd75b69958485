"""The objective and threat of a run as plain values, stored as JSON, from which the objective is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from resolvent.attacks import FourierNoise, Threat
from resolvent.attacks.pgd import PGD
from resolvent.data.task import Bounds
from resolvent.experiments.stages.sites import sites_of
from resolvent.models.settings import Settings
from resolvent.training import PGDAT, TRADES, Probe, awp, noisy, pgd_at, spread, standard, toned, trades
from resolvent.training.objective import Objective
from resolvent.training.step.batch import criterion
from resolvent.training.weighted import weighted

Kind = Literal["standard", "pgd-at", "trades"]
NormName = Literal["linf", "l2", "l1"]


class Reach(Protocol):
    """The attack limits of a goal or of an evaluation plan."""

    @property
    def norm(self) -> NormName: ...
    @property
    def channels(self) -> tuple[float, ...]: ...
    @property
    def low(self) -> tuple[float, ...]: ...
    @property
    def high(self) -> tuple[float, ...]: ...


def threat_of(reach: Reach, eps: float, bounds: Bounds | None) -> Threat:
    """The threat, with the task's bounds unless the reach has its own."""
    own = (one(reach.low), one(reach.high)) if reach.low and reach.high else bounds
    return Threat(reach.norm, reach.channels or eps, own)


def one(line: tuple[float, ...]) -> float | tuple[float, ...]:
    """A number for all channels, or one per channel."""
    return line[0] if len(line) == 1 else line


@dataclass(frozen=True)
class Goal(Settings):
    """The objective, and the threat of its inner attack; standard training is only evaluated under it.

    eps None: no attack at all, neither in training nor in the measurements
    channels  an eps per channel, if they differ; eps is then the largest
    low, high the valid range of each channel, or of all (one number); default: the task's
    noise     standard deviation of Gaussian noise on every training sample, for standard training
    tone      amplitude and frequency of a tone at the state-space layers during training, drawn as in the test
    weights   class weights, one number per class; default: equal
    spread    add the penalty against collapsed outputs
    awp       relative size of the adversarial weight perturbation; 0: none

    Examples:
        >>> rv.experiments.Goal("trades", "linf", eps=0.1, beta=3.0).steps
        10
    """

    kind: Kind = "standard"
    norm: NormName = "linf"
    eps: float | None = None
    steps: int = 10
    step_size: float | None = None
    beta: float = 6.0
    noise: float = 0.0
    spread: bool = False
    awp: float = 0.0
    weights: tuple[float, ...] = ()
    channels: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    tone: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tone and (len(self.tone) != 2 or self.kind != "standard"):
            raise ValueError(f"Goal: tone is (amplitude, frequency), for standard training alone; got {self.tone}.")
        if self.kind != "standard" and self.eps is None:
            raise ValueError(f"Goal: {self.kind} needs eps, the size of what it trains against; give one.")
        if self.kind != "standard" and self.noise:
            raise ValueError(f"Goal: noise goes with standard training, not with {self.kind}; leave it at 0.")
        if self.kind == "standard" and self.awp:
            raise ValueError("Goal: awp goes with pgd-at or trades, not with standard training; leave it at 0.")

    def threat(self, bounds: Bounds | None) -> Threat | None:
        return None if self.eps is None else threat_of(self, self.eps, bounds)

    def objective(self, bounds: Bounds | None) -> Objective:
        base = weighted(self._base(bounds), self.weights) if self.weights else self._base(bounds)
        heard = toned(FourierNoise(self.tone[0], self.tone[1]), sites_of, base) if self.tone else base
        return spread(heard) if self.spread else heard

    def _base(self, bounds: Bounds | None) -> Objective:
        threat = self.threat(bounds)
        if self.kind == "standard" or threat is None:
            return noisy(self.noise) if self.noise else standard
        if self.kind == "pgd-at":
            robust: PGDAT | TRADES = pgd_at(threat, steps=self.steps, step_size=self.step_size)
        else:
            robust = trades(threat, self.beta, steps=self.steps, step_size=self.step_size)
        return awp(robust, self.awp) if self.awp else robust

    def probe(self, bounds: Bounds | None) -> Probe | None:
        """PGD-10 from a random start, the papers' standard measurement during training."""
        threat = self.threat(bounds)
        return None if threat is None else Probe(threat, PGD(10, self.step_size, objective=criterion))
