"""How a model is trained, as one frozen value that a run records; a resumed run must repeat it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, get_args

from resolvent.attacks import Attack, Threat
from resolvent.attacks.pgd import PGD
from resolvent.training.step.batch import criterion
from resolvent.usage.numbers import Counted, check_choice, check_not_negative

Precision = Literal["float32", "bf16"]
Schedule = Literal["cosine", "constant", "plateau"]
Optimiser = Literal["adamw", "adam"]
Choice = Literal["robust", "clean"]
Averaging = Literal["none", "ema", "swa"]


@dataclass(frozen=True)
class Probe:
    """The attack with which checkpoints are measured and chosen: PGD-10 from one random start by default.

    Examples:
        >>> rv.training.Probe(rv.Threat("linf", 0.1)).attack.steps
        10
    """

    threat: Threat
    attack: Attack = field(default_factory=lambda: PGD(steps=10, objective=criterion))


@dataclass(frozen=True)
class Budget(Counted):
    """How long and how a model is trained, in plain values. The defaults are those of the study of deep SSMs under
    adversarial training, its 180 epochs apart.

    warmup         epochs of linear warm-up; may be fractional
    schedule       "cosine" to zero, "constant", or "plateau": times 0.9 when the training loss stalls
    clip           largest norm of the whole gradient; None: no clipping
    groups         keep the layers' own optimiser groups (no weight decay on dynamics); False: one group for all
    ssm_lr         learning rate of the layers' own groups; None: the layers' setting, or lr
    precision      "bf16" trains the model under autocast; parameters, losses, attack steps and all measurements stay in
                   float32
    evaluate_every epochs between measurements; the last epoch is always measured
    save_every     steps between saved states, in addition to one per epoch; None: none
    track_test     measure the test split with the validation split, and keep its best epoch separately
    track_seen     also measure this many training samples (0: none), without augmentation
    choose         how the best checkpoint is chosen: by the score under the probe, or the clean one
    optimiser      "adamw", or "adam", whose weight decay is part of the gradient
    accumulate     number of pieces in which a batch is processed: less memory, the same gradient
    patience       stop after this many measurements without improvement; None: all epochs
    average        the weights measured, stored and returned: current ("none"), their exponential moving average
                   ("ema", with `average_decay` per step) or the mean of those after each epoch ("swa")
    average_from   epochs before averaging begins

    Examples:
        >>> rv.training.Budget(epochs=5, lr=1e-2).epochs
        5
    """

    least: ClassVar[dict[str, int]] = {
        "epochs": 1, "batch_size": 1, "evaluate_every": 1, "save_every": 1, "track_seen": 0, "accumulate": 1,
        "patience": 1,
    }  # fmt: skip
    epochs: int = 30
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = "cosine"
    warmup: float = 0.0
    clip: float | None = None
    groups: bool = True
    ssm_lr: float | None = None
    precision: Precision = "float32"
    evaluate_every: int = 1
    save_every: int | None = None
    track_test: bool = False
    track_seen: int = 0
    choose: Choice = "robust"
    optimiser: Optimiser = "adamw"
    accumulate: int = 1
    patience: int | None = None
    average: Averaging = "none"
    average_decay: float = 0.999
    average_from: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        where = type(self).__name__
        check_not_negative(where, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)
        check_not_negative(where, average_decay=self.average_decay, average_from=self.average_from)
        optional = {"clip": self.clip, "ssm_lr": self.ssm_lr}
        check_not_negative(where, **{name: value for name, value in optional.items() if value is not None})
        kinds = {"schedule": Schedule, "precision": Precision, "choose": Choice, "optimiser": Optimiser,
                 "average": Averaging}  # fmt: skip
        for name, kind in kinds.items():
            check_choice(where, name, getattr(self, name), get_args(kind))
        for name, value in (("groups", self.groups), ("track_test", self.track_test)):
            if not isinstance(value, bool):
                raise TypeError(f"{where}: {name} must be True or False, got {value!r}.")
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise TypeError(f"{where}: betas must be a pair of numbers such as (0.9, 0.999), got {self.betas!r}.")
        check_not_negative(where, **{f"betas[{i}]": value for i, value in enumerate(self.betas)})
        if max(self.betas) >= 1:
            raise ValueError(f"{where}: betas must lie below 1, got {self.betas}.")
        if self.average_decay >= 1:
            raise ValueError(f"{where}: average_decay must lie below 1, got {self.average_decay}.")
        for name, epochs in (("warmup", self.warmup), ("average_from", self.average_from)):
            if epochs > self.epochs:
                raise ValueError(f"{where}: {name} must lie within the {self.epochs} epochs, got {epochs}.")


@dataclass(frozen=True)
class FitSettings(Budget):
    """A budget, with the seed and the attack used for measurements.

    seed    of the sample order and of all random numbers
    probe   attack of the measurements; None: the objective's own threat, or none

    Examples:
        >>> rv.training.FitSettings(epochs=5, batch_size=32, lr=1e-2).seed
        0
    """

    least: ClassVar[dict[str, int]] = Budget.least | {"seed": 0}
    seed: int = 0
    probe: Probe | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probe is not None and not isinstance(self.probe, Probe):
            raise TypeError(f"FitSettings: probe must be a Probe(threat), got {type(self.probe).__name__}.")

    @staticmethod
    def of(budget: Budget, seed: int, probe: Probe | None = None) -> FitSettings:
        """Extend a budget by this seed and probe."""
        return FitSettings(**{each.name: getattr(budget, each.name) for each in fields(Budget)}, seed=seed, probe=probe)
