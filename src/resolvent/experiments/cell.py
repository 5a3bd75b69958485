"""A run as one frozen value: task, model, objective, threat, budget, seed. All of it round-trips through JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from resolvent.attacks.autoattack.presets import check_preset
from resolvent.experiments.objective_settings import Goal, NormName
from resolvent.models import ModelConfig
from resolvent.models.settings import Settings, from_dict, to_dict
from resolvent.training.settings import Budget

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+.=-]*")  # allowed in a path
Value = str | int | float | bool | None | tuple[int, ...] | tuple[float, ...]
Kept = Literal["best", "last", "best_by_test"]


@dataclass(frozen=True)
class TaskChoice(Settings):
    """A task by name with its options, or a file of your own; `samples` keeps only the first of each split.

    Examples:
        >>> rv.experiments.TaskChoice("digits", samples=64).name
        'digits'
    """

    name: str = "digits"
    options: tuple[tuple[str, Value], ...] = ()
    samples: int | None = None
    file: str | None = None

    def keywords(self) -> dict[str, Any]:
        return dict(self.options)


@dataclass(frozen=True)
class AttackPlan(Settings):
    """One evaluation of the trained model; `on` selects its checkpoints. For channels and bounds see `Goal`.

    Examples:
        >>> rv.experiments.AttackPlan("standard", "linf", eps=8 / 255, samples=1000).name
        'standard-linf-0.0313725'
    """

    preset: str = "fast"
    norm: NormName = "linf"
    eps: float = 0.1
    samples: int | None = None
    on: tuple[Kept, ...] = ("best",)
    batch_size: int = 256
    probe: int = 64
    channels: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_preset(self.preset)

    @property
    def name(self) -> str:
        """The name of its results folder."""
        return f"{self.preset}-{self.norm}-{self.eps:.6g}{'-by-channel' if self.channels else ''}"


@dataclass(frozen=True)
class CertifyPlan(Settings):
    """Certified radii of the best checkpoint in L2: the share certified at each of `radii`, compared with an attack.

    radii       in the units of the data; default: five spread over the certified radii
    smoothing   also certify the model smoothed by Gaussian noise of this deviation, with `copies` noisy samples each

    Examples:
        >>> rv.experiments.CertifyPlan(radii=(0.1, 0.25)).preset
        'fast'
    """

    radii: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1.0)
    samples: int | None = None
    preset: str | None = "fast"
    smoothing: float | None = None
    copies: int = 1000


@dataclass(frozen=True)
class BoundPlan(Settings):
    """The generalisation bound of a single selective block after training, the gap, and the norms after every epoch.

    ceiling   the value at which the loss is clipped, as the bound requires
    """

    delta: float = 0.05
    ceiling: float = 1.0


@dataclass(frozen=True)
class FourierPlan(Settings):
    """Tones at the best checkpoint, at test time: `amplitudes` at each of `frequencies` (radians per unit of time).

    where   at the input of every state-space layer, whose step k is at time k dt, or at the model's input (dt = 1)
    own     also the frequency that the trained layers amplify most

    Examples:
        >>> rv.experiments.FourierPlan(amplitudes=(0.1, 1.0)).where
        'layers'
    """

    amplitudes: tuple[float, ...] = (0.1,)
    frequencies: tuple[float, ...] = (325.4,)
    where: Literal["layers", "input"] = "layers"
    own: bool = True
    samples: int | None = None
    batch_size: int = 256


class Addressed(Settings):
    """An entry of a recipe: its tags are its address and determine where its results are."""

    recipe: str
    tags: tuple[str, ...]
    seed: int
    untagged: ClassVar[str] = "run"

    @property
    def address(self) -> str:
        """`s4,digits,trades`."""
        return ",".join(self.tags)

    @property
    def place(self) -> str:
        """Its path below the results folder."""
        return f"{self.recipe}/{'-'.join(self.tags) or self.untagged}/seed-{self.seed}"

    def seeded(self, seed: int) -> Self:
        return replace(self, seed=seed)  # type: ignore[type-var]  # a dataclass, as every subclass is

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = to_dict(self)
        return made


@dataclass(frozen=True)
class Cell(Addressed):
    """One run of a recipe. `tags` address it: `resolvent run RECIPE --only s4,cifar10,trades`.

    Examples:
        >>> cell = rv.experiments.Cell("mine", ("s4d", "digits"), rv.ModelConfig(d_model=8, layers=1))
        >>> cell.place
        'mine/s4d-digits/seed-0'
    """

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
    corrupt: int | None = None  # number of test samples corrupted after training; None: none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags("Cell", self.recipe, *self.tags)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Cell:
        cell: Cell = from_dict(data, Cell)
        return cell


def check_tags(where: str, *tags: str) -> None:
    for tag in tags:
        if not TAG.fullmatch(tag):
            raise ValueError(
                f"{where}: a recipe's or tag's name goes into a path: letters, digits and _+.=- only, got {tag!r}."
            )
