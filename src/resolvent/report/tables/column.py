"""The meaning of a table's column: attack or certificate, eps, number of samples, checkpoint.

Numbers share a column only if all of these are equal, so that any two of them may be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resolvent.report.runs import Record

KINDS = ("clean", "pgd10", "autoattack", "certified", "smoothed")
PLACES = ("best", "last")
Eps = float | tuple[float, ...]  # of all channels, or per channel
NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


@dataclass(frozen=True)
class Column:
    """`samples` None: not in an older record; eps and norm are for attacks and certificates."""

    kind: str
    place: str
    samples: int | None = None
    preset: str = ""
    norm: str = ""
    eps: Eps | None = None

    @property
    def what(self) -> str:
        """`autoattack_best`, the key of published values."""
        return f"{self.kind}_{self.place}"

    @property
    def name(self) -> str:
        if self.kind == "autoattack":
            # `fast` leaves out FAB, six of nine targets and most queries: its result is not that of AutoAttack
            known = {"": "AutoAttack, preset unknown", "fast": "attack fast"}
            return known.get(self.preset, f"AutoAttack {self.preset}")
        names = {"clean": "clean", "pgd10": "PGD-10", "certified": "certified", "smoothed": "certified by votes"}
        return names[self.kind]

    @property
    def terms(self) -> str:
        """Norm, size and number of samples."""
        size = [] if self.eps is None else [f"{NORMS.get(self.norm, self.norm)} {format_eps(self.eps)}".strip()]
        return ", ".join([*size, f"n {'?' if self.samples is None else self.samples}"])

    def __str__(self) -> str:
        return f"{self.name}, {self.terms}, {self.place}"

    @property
    def order(self) -> tuple[object, ...]:
        """Kinds from left to right; within one unknown values first, then sizes, then checkpoints."""
        size = (-1.0,) if self.eps is None else self.eps if isinstance(self.eps, tuple) else (self.eps,)
        return KINDS.index(self.kind), self.preset, self.norm, size, self.samples or 0, PLACES.index(self.place)


def format_eps(eps: Eps) -> str:
    """`8/255` if it is such a fraction, else the number; `0.5 0.5 2` for a size per channel."""
    if isinstance(eps, tuple | list):
        return " ".join(map(format_eps, eps))
    steps = eps * 255
    return f"{round(steps)}/255" if 0.5 < steps < 100 and abs(steps - round(steps)) < 1e-6 else f"{eps:.4g}"


def _size(eps: Any) -> Eps | None:
    return tuple(float(e) for e in eps) if isinstance(eps, list | tuple) else eps


def columns_of(record: Record) -> Iterator[tuple[Column, float]]:
    """Every accuracy, or score of a regression, shown in a table, as in the record."""
    for place in PLACES:
        held = record["training"]["summary"].get(place, {})
        everyone = _count(record.get("task", {}).get("samples", {}).get("test"))
        if held.get("test_clean") is not None:
            yield Column("clean", place, everyone), held["test_clean"]
        attack = first_attack(record, place)
        if attack is not None and "pgd10" in attack:  # the same samples as AutoAttack below
            yield _of_attack("pgd10", attack, place), attack["pgd10"]["accuracy"]
        elif held.get("test_robust") is not None and not _is_paired(record):
            goal = record["cell"].get("goal") or {}
            norm = goal.get("norm", "") if goal.get("eps") is not None else ""
            eps = goal.get("channels") or goal.get("eps")
            yield Column("pgd10", place, everyone, "", norm, _size(eps)), held["test_robust"]
        if attack is not None:
            yield _of_attack("autoattack", attack, place), standing(attack)
    yield from _certified_columns(record)


def _is_paired(record: Record) -> bool:
    """Whether PGD-10 used AutoAttack's samples; its result on the whole split is then not shown."""
    return any("pgd10" in attack for attack in record.get("attacks", {}).values())


def first_attack(record: Record, place: str) -> Record | None:
    """The cell's first evaluation, at its training eps."""
    return next((a for a in record.get("attacks", {}).values() if a["checkpoint"] == place), None)


def standing(attack: Record) -> float:
    """Robust accuracy under the preset and PGD-10 together."""
    accuracy: float = attack["accuracy"]
    missed = attack.get("pgd10", {}).get("missed", 0)
    return accuracy - missed / attack["samples"] if missed else accuracy


def _of_attack(kind: str, attack: Record, place: str) -> Column:
    preset = attack.get("preset", "") if kind == "autoattack" else ""
    norm, own = attack.get("norm", ""), attack.get("threat", {}).get("eps")
    eps = _size(own if isinstance(own, list) else attack.get("eps"))
    return Column(kind, place, _count(attack.get("samples")), preset, norm, eps)


def _certified_columns(record: Record) -> Iterator[tuple[Column, float]]:
    held = record.get("certificate") or {}
    n = _count(held.get("samples"))
    if held.get("gain") is not None:
        for point in held.get("curve") or ():
            yield Column("certified", "best", n, "", "l2", point["radius"]), point["certified"]
    for point in (held.get("smoothing") or {}).get("curve") or ():
        yield Column("smoothed", "best", n, "", "l2", point["radius"]), point["certified"]


def _count(n: object) -> int | None:
    return n if isinstance(n, int) and n > 0 else None


def standard_error(share: float, n: int | None) -> float | None:
    """Standard error of a share of n samples for the whole distribution; at least that of one sample in n."""
    if n is None:
        return None
    p = min(max(share, 1 / n), 1 - 1 / n) if n > 1 else 0.5
    return math.sqrt(p * (1 - p) / n)
