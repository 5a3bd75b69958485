"""`resolvent list`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    """Name the recipes, tasks, layers, initialisations and presets that this version has."""

    def execute(self) -> int:
        from resolvent import catalogue

        return catalogue.run()
