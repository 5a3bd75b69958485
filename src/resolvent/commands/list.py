"""`resolvent list`: the contents of this version, read from the code."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console
from rich.table import Table

WIDE = 200  # line width in a log: one line per name


@dataclass(frozen=True)
class List:
    """Name the recipes, tasks, layers, initialisations and presets that this version has."""

    def execute(self) -> int:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDE)
        parts = {
            "Recipes (resolvent run NAME)": recipes(),
            "Tasks": tasks(),
            "Layers": layers(),
            "Initialisations": initialisations(),
            "Presets": presets(),
            "Models (resolvent run train --preset NAME)": models(),
        }
        for title, rows in parts.items():
            console.print(_table(title, rows))
        return 0


def recipes() -> list[tuple[str, str]]:
    """The recipes of `resolvent run`."""
    from resolvent.experiments.recipe import names

    return [*names().items(), ("train", "Your own data or any task, any layer: see resolvent run --help.")]


def tasks() -> list[tuple[str, str]]:
    """The tasks for training."""
    from resolvent.data import task_summaries

    return list(task_summaries().items())


def layers() -> list[tuple[str, str]]:
    """The layers of `resolvent check`, and what `run train --layer` takes besides."""
    from resolvent.conformance.cases import layer_class, layer_names

    reservoir = ("reservoir", "For few samples: random S4D systems with a read-out in closed form (run train --layer).")
    return [*((name, _first_line(layer_class(name).__doc__)) for name in layer_names()), reservoir]


def initialisations() -> list[tuple[str, str]]:
    """Initialisations of state matrices and time steps."""
    from resolvent.init import ring, spectra
    from resolvent.ssm.hippo import NAMES

    rows = [(f"S4D {name}", _first_line(make.__doc__)) for name, make in spectra.SPECTRA.items()]
    rows += [(f"HiPPO {name}", "resolvent.ssm.hippo, nplr and dplr forms") for name in NAMES]
    return [*rows, ("ring", _first_line(ring.__doc__))]


def presets() -> list[tuple[str, str]]:
    """Published models as functions."""
    from resolvent.models import presets as home

    return [(name, _first_line(inspect.getdoc(function))) for name, function in _functions(home)]


def models() -> list[tuple[str, str]]:
    """Names of published models, by the part before the first dash."""
    from resolvent.models.presets.named import named_presets

    rows: dict[str, list[str]] = {}
    for name in named_presets():
        rows.setdefault(name.partition("-")[0], []).append(name)
    return [(family, ", ".join(names)) for family, names in rows.items()]


def _functions(module: ModuleType) -> list[tuple[str, object]]:
    found = [(name, getattr(module, name)) for name in module.__all__]
    return [(name, value) for name, value in found if inspect.isfunction(value)]


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=16)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
