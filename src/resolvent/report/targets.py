"""Published values, for comparison with measured ones."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Target:
    """One published row: accuracies in per cent by column, and where they are printed."""

    source: str
    values: dict[str, float]


def target(recipe: str, tags: tuple[str, ...]) -> Target | None:
    """The published row of a cell, if there is one."""
    return targets().get((recipe, tags))


@functools.cache
def targets() -> dict[tuple[str, tuple[str, ...]], Target]:
    """Every published row, by recipe and tags."""
    text = files("resolvent.report").joinpath("targets.toml").read_text(encoding="utf-8")
    return {(row.pop("recipe"), tuple(row.pop("tags"))): Target(row.pop("source"), row) for row in _rows(text)}


def _rows(text: str) -> list[dict[str, Any]]:
    return list(tomllib.loads(text)["target"])
