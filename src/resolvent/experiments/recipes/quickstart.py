"""A first look at everything on the embedded digits, in minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from resolvent.experiments.cell import AttackPlan, Cell, CertifyPlan
from resolvent.experiments.recipes.digits import EPS, digits_cell, shorter
from resolvent.experiments.recipes.size import Size

STRUCTURES = ("s4", "s4+relu", "s5-ptd", "mamba", "l2ru")


def quickstart(size: Size = "small") -> list[Cell]:
    """S4, S4 with AdS, S5-PTD, Mamba and L2RU on the digits: standard training and TRADES, attacked and certified."""
    cells = [_whole(digits_cell("quickstart", s, kind)) for s in STRUCTURES for kind in ("standard", "trades")]
    return cells if size == "full" else [shorter(cell, epochs=6, samples=64) for cell in cells]


def _whole(cell: Cell) -> Cell:
    """With a curve over eps, a certificate and a look inside."""
    weaker = tuple(AttackPlan("fast", "linf", eps, samples=200, probe=0) for eps in (EPS / 4, EPS / 2))
    return replace(cell, attacks=(*cell.attacks, *weaker), certify=CertifyPlan(samples=200), analyse=True)
