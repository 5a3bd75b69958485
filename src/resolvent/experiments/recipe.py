"""Recipes and their cells by name, as typed by a user; an error suggests the nearest names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from resolvent.experiments import recipes
from resolvent.experiments.recipes.size import Size
from resolvent.experiments.store.folder import RunError, Tell
from resolvent.experiments.study import Job
from resolvent.experiments.sweep import sweep
from resolvent.usage.numbers import did_you_mean

Recipe = Callable[[Size], Sequence[Job]]


def run(
    recipe: str | Sequence[Job],
    out: str | Path = "runs",
    *,
    size: Size = "full",
    only: str = "",
    seeds: Sequence[int] = (),
    device: str = "cpu",
    tell: Tell = print,
) -> list[dict[str, Any]]:
    """Run a recipe in this process and return the records of its runs; complete runs in `out` are read, not repeated.

    recipe  a name that `resolvent list` shows, or a list of your own `Cell` and `Study` values
    out     the folder of results; a stopped run resumes when called again with the same folder
    size    "full" as published, or "small" for two cores
    only    for a named recipe, only the runs with all of these tags: "s4,cifar10,trades"
    seeds   replace the recipe's own
    tell    called with each progress line

    `resolvent run` does the same, with workers, time limits and a report; `write_report` writes the report alone.

    Examples:
        >>> records = rv.run("ptd-conditioning", "runs", size="small", tell=lambda line: None)
        >>> print(records[0]["study"]["text"])
        At N = 16 the eigenvectors of LegS have κ = 10^10.9; after a perturbation of 4.9 % they have κ = 5.82.
    """
    cells = cells_of(recipe, size, only, seeds) if isinstance(recipe, str) else list(recipe)
    if not isinstance(recipe, str) and (only or seeds):
        raise RunError("run: only and seeds are for a named recipe; of your own cells give those that you want.")
    return sweep(cells, out, device=device, tell=tell)


def names() -> dict[str, str]:
    """Every recipe with the first line of its docstring."""
    return {name.replace("_", "-"): (inspect.getdoc(getattr(recipes, name)) or "").splitlines()[0] for name in _own()}


def cells_of(name: str, size: Size = "full", only: str = "", seeds: Sequence[int] = ()) -> list[Job]:
    """The cells of a recipe whose tags include everything in `only` ("s4,cifar10,trades"), for each seed.

    Given seeds replace the recipe's own.
    """
    known = [each.replace("_", "-") for each in _own()]
    if name not in known:
        known.append("train")
        raise RunError(f"run: there is no recipe {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}.")
    make: Recipe = getattr(recipes, name.replace("-", "_"))
    cells = select(make(size), only)
    if not seeds:
        return cells
    asked = {job.place: job for job in (cell.seeded(seed) for cell in cells for seed in seeds)}
    return list(asked.values())


def size_of(name: str, tags: Sequence[str]) -> Size | None:
    """The size at which a recipe has a cell of these tags, the full one first."""
    if name.replace("-", "_") not in _own():
        return None
    make: Recipe = getattr(recipes, name.replace("-", "_"))
    sizes: tuple[Size, ...] = get_args(Size)
    return next((size for size in sizes if any(cell.tags == tuple(tags) for cell in make(size))), None)


def select(cells: Sequence[Job], only: str) -> list[Job]:
    """The cells with all of the tags; every tag must exist, and at least one cell must remain."""
    tags = list(dict.fromkeys(tag for cell in cells for tag in cell.tags))
    wanted = [tag.strip() for tag in only.split(",") if tag.strip()]
    for tag in wanted:
        if tag not in tags:
            raise RunError(f"run: no cell is called {tag!r}{did_you_mean(tag, tags)} Known: {', '.join(tags)}.")
    chosen = [cell for cell in cells if set(wanted) <= set(cell.tags)]
    if not chosen:
        some = "; ".join(cell.address for cell in cells[:6])
        raise RunError(f"run: no cell is {only!r} all at once; cells are, for example: {some}.")
    return chosen


def _own() -> list[str]:
    return list(recipes.__all__)
