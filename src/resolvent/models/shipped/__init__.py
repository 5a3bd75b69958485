"""Robust models included in the package, each with a card of its measurements.

    model = rv.models.pretrained("scifar10-s4-pgd-at")     # in evaluation mode; x (b, 1024, 3) in [0, 1] -> (b, 10)
    print(rv.models.card("scifar10-s4-pgd-at").markdown())

A subfolder has a model as written by `save_model`, and `card.json`; `rv.load(rv.models.folder_of(name))`
takes raw data. Weights and card have digests, which are checked on reading.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, read_json
from resolvent.models.checkpoint import load_model
from resolvent.models.model import Model, TwoTower
from resolvent.usage.numbers import check_choice

HERE = Path(__file__).parent
CARD = "card.json"


@dataclass(frozen=True)
class Card:
    """A model's training data, threat and measurements; accuracies in per cent on the test split.

    threat       the threat of training and attacks, e.g. "Linf, eps 8/255"; None: none
    clean, pgd10, autoattack   accuracies; None: not measured. `samples` of the last one, with its standard error
    certified    {radius in L2: accuracy that no perturbation within it can change}
    weights      sha256 of the safetensors file

    Examples:
        >>> rv.models.card("digits-l2ru-certified").clean > 90
        True
    """

    name: str
    model: str
    parameters: int
    data: str
    input: str
    objective: str
    threat: str | None
    clean: float
    pgd10: float | None
    autoattack: float | None
    samples: int | None
    standard_error: float | None
    certified: dict[str, float]
    seed: int
    commit: str
    command: str
    licence: str
    weights: str

    def markdown(self) -> str:
        """The card as a page, for a model's folder or its place on a hub."""
        record = {each.name.replace("_", " "): getattr(self, each.name) for each in fields(self)}
        rows = [f"| {name} | {_spell(value)} |" for name, value in record.items() if value or value == 0]
        return "\n".join([f"# {self.name}", "", f"{self.model} on {self.data}.", "", "| | |", "|---|---|", *rows, ""])


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {each:g}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else f"`{value}`" if str(value).count(" --") else str(value)


def pretrained_names() -> tuple[str, ...]:
    """The names of the models included in the package.

    Examples:
        >>> "digits-l2ru-certified" in rv.models.pretrained_names()
        True
    """

    return tuple(sorted(path.parent.name for path in HERE.glob(f"*/{CARD}")))


def folder_of(name: str) -> Path:
    """The model's folder, for `rv.load`.

    Examples:
        >>> (rv.models.folder_of("digits-l2ru-certified") / "card.json").exists()
        True
    """
    check_choice("pretrained", "name", name, pretrained_names())
    return HERE / name


def pretrained(name: str) -> Model | TwoTower:
    """The model of that name in evaluation mode, in float32 on the CPU.

    Examples:
        >>> rv.models.pretrained("digits-l2ru-certified")(torch.rand(2, 64, 1)).shape
        torch.Size([2, 10])
    """
    return load_model(folder_of(name)).eval()


def card(name: str) -> Card:
    """The card of a shipped model.

    Examples:
        >>> rv.models.card("scifar10-s4-pgd-at").autoattack
        34.7
    """
    try:
        record = read_json(folder_of(name) / CARD)
    except Damaged as wrong:
        raise ValueError(f"card: {wrong}; install the package again.") from wrong
    return Card(**{key: value for key, value in record.items() if key in {each.name for each in fields(Card)}})
