"""The papers' claims as data: where they are printed, the published values, and the criteria.

`claims.toml` lists them, one [[claim]] each; every published row of `targets.toml` without a claim of its own is one
too: its numbers must be reproduced within WITHIN points.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from resolvent.report.targets import Target, targets

WITHIN = {"clean": 2.0, "pgd10": 2.0, "autoattack": 3.0}  # points of a published row
LRA_WITHIN = 1.0
VARIANTS = ("s4d-legs", "s4d-inv", "s4d-lin")  # whose best per column is one row in a lecture's table
LABELS = {"clean": "clean", "pgd10": "PGD-10", "autoattack": "AutoAttack"}
PAPERS = {
    "qi2024": "Qi et al. 2024, adversarial robustness of deep SSMs",
    "yu2024": "Yu et al. 2024, perturb then diagonalise (PTD)",
    "honarpisheh2025": "Honarpisheh et al. 2025, generalisation of selective SSMs",
    "massai2025": "Massai 2025, structured state-space models (lecture and L2RU)",
}


@dataclass(frozen=True)
class Criterion:
    """A number of some runs, or its difference to another, and its condition.

    measure  names, of which the first present in a run is used
    near     it must lie within `within` of this; above, below: beyond this (by two standard errors where seeds allow)
    """

    label: str
    recipe: str
    tags: tuple[str, ...]
    measure: tuple[str, ...]
    near: float | None = None
    within: float = 0.0
    above: float | None = None
    below: float | None = None
    minus: tuple[str, ...] | None = None  # tags of the runs whose number is subtracted
    minus_measure: tuple[str, ...] | None = None
    unit: str = ""
    epochs: int | None = None  # a run of another length does not count

    def __post_init__(self) -> None:
        if sum(v is not None for v in (self.near, self.above, self.below)) != 1:
            raise ValueError(f"claims: {self.label!r} needs exactly one of near, above and below.")


@dataclass(frozen=True)
class Claim:
    """One claim of one paper."""

    paper: str
    place: str
    says: str
    published: str
    command: str
    cost: str
    tests: tuple[Criterion, ...]
    note: str = ""


@functools.cache
def claims() -> tuple[Claim, ...]:
    """The claims of claims.toml, then the published rows not covered by them; paper by paper."""
    text = files("resolvent.report").joinpath("claims.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["claim"]
    own = [_claim(row) for row in rows]
    covered = {(row["covers"]["recipe"], tuple(row["covers"]["tags"])) for row in rows if "covers" in row}
    more = [_row(*key, row) for key, row in targets().items() if key not in covered and key[0] in RECIPES]
    order = list(PAPERS)
    return tuple(sorted([*own, *more], key=lambda claim: order.index(claim.paper)))


def _claim(row: dict[str, Any]) -> Claim:
    tests = tuple(_test(held) for held in row["test"])
    return Claim(row["paper"], row["place"], row["says"], row["published"], row["command"], row.get("cost", ""), tests,
                 row.get("note", ""))  # fmt: skip


def _test(held: dict[str, Any]) -> Criterion:
    names = {"measure": _names(held["measure"]), "tags": tuple(held["tags"])}
    if "minus" in held:
        names["minus"] = tuple(held["minus"])
    if "minus_measure" in held:
        names["minus_measure"] = _names(held["minus_measure"])
    return Criterion(**{**held, **names})


def _names(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


RECIPES = ("qi2024-table1", "qi2024-table2", "lra")  # whose published rows are claims
AUTHORS = {"Qi": "qi2024", "Yu": "yu2024", "Massai": "massai2025", "Gu": "massai2025"}  # by the start of a source
LRA_COSTS = {  # of an H200; scaled from S4's 20 minutes under PGD-AT on CIFAR-10 by tokens, layers and widths
    "listops": "3 to 55 minutes",
    "text": "1 to 20 minutes",
    "retrieval": "8 to 60 minutes",
    "image": "3 to 120 minutes",
    "pathfinder": "10 to 130 minutes",
    "pathx": "1 to 6 hours",
    "average": "2 to 12 hours, the six tasks together,",
}


def _cost(recipe: str, tags: tuple[str, ...]) -> str:
    """An estimate for one seed."""
    if recipe == "lra":
        return f"{LRA_COSTS[tags[1]]} of an H200 (estimate)"
    slow = tags[0] in ("mega", "mamba")
    if "standard" in tags:
        return f"{'5' if slow else '2 to 3'} minutes of an H200 (estimate)"
    usual = "30 minutes" if slow else {"mnist": "6 minutes", "cifar10": "20 minutes"}[tags[1]]
    return f"{usual} of an H200 (estimate)"


def _command(recipe: str, tags: tuple[str, ...]) -> str:
    """The command for the cells of a row: all tasks for an average, three models where the row is the best of three."""
    names = VARIANTS if recipe == "lra" and tags[0] == "s4d" else tags[:1]
    rest = [tag for tag in tags[1:] if tag != "average"]
    only = [",".join([name, *rest]) for name in names]
    return " && ".join(f"resolvent run {recipe} --only {each} --device cuda --precision bf16" for each in only)


def _row(recipe: str, tags: tuple[str, ...], row: Target) -> Claim:
    paper = AUTHORS[re.split(r"[ ,]", row.source)[0]]
    tests = []
    for kind, label in LABELS.items():
        value = row.values.get(f"{kind}_best")
        if value is not None:
            within = LRA_WITHIN if recipe == "lra" else WITHIN[kind]
            measure = (f"{kind}_best_by_test", f"{kind}_best")  # the authors chose by test where known
            tests.append(Criterion(label, recipe, tags, measure, near=value, within=within, unit="%"))
    published = " / ".join(f"{row.values[f'{kind}_best']:.2f}" for kind in LABELS if f"{kind}_best" in row.values)
    said = " / ".join(label for kind, label in LABELS.items() if f"{kind}_best" in row.values)
    place = row.source if row.source.startswith("Gu") else row.source.partition(", ")[2] or row.source
    return Claim(paper, place, f"{' '.join(tags)}: {said}", published, _command(recipe, tags), _cost(recipe, tags),
                 tuple(tests))  # fmt: skip
