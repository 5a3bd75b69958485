"""A run as one frozen value: task, model, objective, threat, budget, seed. Everything in it survives JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from resolvent.attacks.presets import check_preset
from resolvent.experiments.goal import Goal, NormName
from resolvent.models import ModelConfig
from resolvent.models.settings import Settings, from_dict, to_dict
from resolvent.training import FitSettings

Value = str | int | float | bool | None | tuple[int, ...] | tuple[float, ...]
Kept = Literal["best", "last", "best_by_test"]


@dataclass(frozen=True)
class TaskChoice(Settings):
    """A task by name with its options, or one's own file; `samples` keeps only the first so many of each split."""

    name: str = "digits"
    options: tuple[tuple[str, Value], ...] = ()
    samples: int | None = None
    file: str | None = None

    def keywords(self) -> dict[str, Any]:
        return dict(self.options)


@dataclass(frozen=True)
class Budget(Settings):
    """How long and how a model is trained: the part of `FitSettings` that does not name an attack."""

    epochs: int = 30
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["cosine", "constant", "plateau"] = "cosine"
    warmup: float = 0.0
    clip: float | None = None
    groups: bool = True
    ssm_lr: float | None = None
    precision: Literal["float32", "bf16"] = "float32"
    evaluate_every: int = 1
    save_every: int | None = None
    track_test: bool = False
    track_seen: int = 0
    choose: Literal["robust", "clean"] = "robust"
    optimiser: Literal["adamw", "adam"] = "adamw"

    def settings(self, seed: int) -> FitSettings:
        own = {name: value for name, value in to_dict(self).items() if name != "class"}
        return FitSettings(**own | {"betas": self.betas, "seed": seed})


@dataclass(frozen=True)
class AttackPlan(Settings):
    """One evaluation of the trained model; `on` says which of its checkpoints."""

    preset: str = "fast"
    norm: NormName = "linf"
    eps: float = 0.1
    samples: int | None = None
    on: tuple[Kept, ...] = ("best",)
    batch_size: int = 256
    probe: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_preset(self.preset)

    @property
    def name(self) -> str:
        """The folder of its results."""
        return f"{self.preset}-{self.norm}-{self.eps:.6g}"


@dataclass(frozen=True)
class CertifyPlan(Settings):
    """Certified radii of the best checkpoint in L2: the share certified at each of `radii`, and below an attack.

    smoothing   also certify the model smoothed by normal noise of this deviation; `copies` noisy samples count each
    """

    radii: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0)
    samples: int | None = None
    preset: str | None = "fast"
    smoothing: float | None = None
    copies: int = 1000


@dataclass(frozen=True)
class BoundPlan(Settings):
    """The generalisation bound of a single selective block after training, its gap, and its norms after every epoch.

    ceiling   where the loss is cut: the bound is one for losses of at most that
    """

    delta: float = 0.05
    ceiling: float = 1.0


@dataclass(frozen=True)
class FourierPlan(Settings):
    """Tones at the best checkpoint, in the test alone: `amplitudes` at each of `frequencies` (radians a unit of time).

    where   at the input of every state-space layer, whose step k is at time k dt, or at the model's input (dt = 1)
    own     also the frequency that the trained layers themselves amplify most
    """

    amplitudes: tuple[float, ...] = (0.1,)
    frequencies: tuple[float, ...] = (325.4,)
    where: Literal["layers", "input"] = "layers"
    own: bool = True
    samples: int | None = None
    batch_size: int = 256


@dataclass(frozen=True)
class Cell(Settings):
    """One run of a recipe. `tags` address it: `resolvent run RECIPE --only s4,cifar10,trades`."""

    recipe: str
    tags: tuple[str, ...]
    model: ModelConfig
    task: TaskChoice = field(default_factory=TaskChoice)
    goal: Goal = field(default_factory=Goal)
    budget: Budget = field(default_factory=Budget)
    attacks: tuple[AttackPlan, ...] = ()
    certify: CertifyPlan | None = None
    analyse: bool = False
    attribution: bool = False
    seed: int = 0
    fourier: FourierPlan | None = None
    bound: BoundPlan | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags("Cell", self.recipe, *self.tags)

    @property
    def address(self) -> str:
        """`s4,digits,trades`."""
        return ",".join(self.tags)

    @property
    def place(self) -> str:
        """Where it is kept below the folder of results."""
        return f"{self.recipe}/{'-'.join(self.tags) or 'run'}/seed-{self.seed}"

    def seeded(self, seed: int) -> Cell:
        return replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = to_dict(self)
        return made

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Cell:
        cell: Cell = from_dict(data, Cell)
        return cell


def check_tags(where: str, *tags: str) -> None:
    for tag in tags:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+.=-]*", tag):
            raise ValueError(
                f"{where}: a recipe's or tag's name goes into a path: letters, digits and _+.=- only, got {tag!r}."
            )
