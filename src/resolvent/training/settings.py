"""How a model is trained, as one frozen value that a run records and a resumed run must repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from resolvent.attacks import Attack, Threat
from resolvent.attacks.pgd import PGD
from resolvent.attacks.setting import check_count
from resolvent.training.criterion import criterion

Precision = Literal["float32", "bf16"]
Schedule = Literal["cosine", "constant", "plateau"]
Optimiser = Literal["adamw", "adam"]
Choice = Literal["robust", "clean"]


@dataclass(frozen=True)
class Probe:
    """The attack by which checkpoints are measured and chosen: PGD-10 from one random start unless told."""

    threat: Threat
    attack: Attack = field(default_factory=lambda: PGD(steps=10, objective=criterion))


@dataclass(frozen=True)
class FitSettings:
    """The defaults are those of the study of deep SSMs under adversarial training, its 180 epochs apart.

    warmup         epochs of linear rise before the cosine; may be a fraction
    schedule       "cosine" to zero, "constant", or "plateau": times 0.9 when the training loss stays where it is
    clip           largest norm of the whole gradient; None: as it comes
    groups         keep the layers' own optimiser groups (no weight decay on dynamics); False: one group for all
    ssm_lr         learning rate of the groups that layers set apart; None: what they ask for, or lr
    precision      "bf16" trains the model under autocast; parameters, losses, attack steps and all measurements stay in
                   float32
    evaluate_every epochs between measurements; the last epoch is always measured
    save_every     steps between saved states besides the one after every epoch; None: none
    track_test     measure the test split with the validation split, and keep the best by it under its own name
    track_seen     measure so many of the training samples as well (0: none), as they come without augmentation
    choose         what makes a checkpoint the best: the score under the probe, or the clean one (standard training)
    probe          attack of the measurements; None: the objective's own threat, or none at all
    optimiser      "adamw", or "adam", whose weight decay is part of the gradient
    """

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
    seed: int = 0
    evaluate_every: int = 1
    save_every: int | None = None
    track_test: bool = False
    track_seen: int = 0
    choose: Choice = "robust"
    probe: Probe | None = None
    optimiser: Optimiser = "adamw"

    def __post_init__(self) -> None:
        check_count("FitSettings", 1, epochs=self.epochs, batch_size=self.batch_size)
        check_count("FitSettings", 1, evaluate_every=self.evaluate_every)
        check_count("FitSettings", 0, track_seen=self.track_seen, seed=self.seed)
        if self.save_every is not None:
            check_count("FitSettings", 1, save_every=self.save_every)
        _number("FitSettings", lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)
        optional = {"clip": self.clip, "ssm_lr": self.ssm_lr}
        _number("FitSettings", **{name: value for name, value in optional.items() if value is not None})
        _choice("schedule", self.schedule, get_args(Schedule))
        _choice("precision", self.precision, get_args(Precision))
        _choice("choose", self.choose, get_args(Choice))
        _choice("optimiser", self.optimiser, get_args(Optimiser))
        for name, value in (("groups", self.groups), ("track_test", self.track_test)):
            if not isinstance(value, bool):
                raise TypeError(f"FitSettings: {name} must be True or False, got {value!r}.")
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise TypeError(f"FitSettings: betas must be a pair of numbers such as (0.9, 0.999), got {self.betas!r}.")
        _number("FitSettings", **{f"betas[{i}]": value for i, value in enumerate(self.betas)})
        if max(self.betas) >= 1:
            raise ValueError(f"FitSettings: betas must lie below 1, got {self.betas}.")
        if self.probe is not None and not isinstance(self.probe, Probe):
            raise TypeError(f"FitSettings: probe must be a Probe(threat), got {type(self.probe).__name__}.")
        if self.warmup > self.epochs:
            raise ValueError(f"FitSettings: warmup must end within the {self.epochs} epochs, got {self.warmup}.")


def _number(where: str, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{where}: {name} must be finite and not negative, got {value}.")


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"FitSettings: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
