"""A first look at everything on the embedded digits, in minutes on two cores.

The small size spends its time on training and on one attack at the size that was trained for: it measures every second
epoch, attacks the best checkpoint alone, and draws the curves over eps and over radii through three points.
"""

from __future__ import annotations

from dataclasses import replace

from resolvent.experiments.cell import AttackPlan, Cell, CertifyPlan
from resolvent.experiments.recipes.digits import EPS, digits_cell, shorter
from resolvent.experiments.recipes.size import Size

STRUCTURES = ("s4", "s4+relu", "s5-ptd", "mamba", "l2ru")


def quickstart(size: Size = "small") -> list[Cell]:
    """S4, S4 with AdS, S5-PTD, Mamba and L2RU on the digits: standard training and TRADES, attacked and certified."""
    cells = [digits_cell("quickstart", s, kind) for s in STRUCTURES for kind in ("standard", "trades")]
    return [_whole(cell) if size == "full" else _small(cell) for cell in cells]


def _whole(cell: Cell) -> Cell:
    """With a curve over eps, a certificate and a look inside."""
    weaker = tuple(AttackPlan("fast", "linf", eps, samples=200, probe=0) for eps in (EPS / 4, EPS / 2))
    return replace(cell, attacks=(*cell.attacks, *weaker), certify=CertifyPlan(samples=200), analyse=True)


def _small(cell: Cell) -> Cell:
    own = replace(cell.attacks[0], on=("best",))
    weaker = AttackPlan("fast", "linf", EPS / 2, probe=0)
    certify = CertifyPlan((0.1, 0.25, 0.5))
    few = shorter(replace(cell, attacks=(own, weaker), certify=certify, analyse=True), epochs=6, samples=64)
    return replace(few, budget=replace(few.budget, evaluate_every=2))
