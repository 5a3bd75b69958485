"""A first look at everything on the embedded digits, in minutes on two cores."""

from __future__ import annotations

from resolvent.experiments.cell import Cell
from resolvent.experiments.recipes.digits import digits_cell, shorter
from resolvent.experiments.recipes.size import Size

STRUCTURES = ("s4", "s4+relu", "s5-ptd", "mamba")


def quickstart(size: Size = "small") -> list[Cell]:
    """S4, S4 with AdS, S5-PTD and Mamba on the digits, standard training and TRADES, attacked."""
    cells = [digits_cell("quickstart", s, kind) for s in STRUCTURES for kind in ("standard", "trades")]
    return cells if size == "full" else [shorter(cell, epochs=6, samples=100) for cell in cells]
