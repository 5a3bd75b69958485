"""The model card of a run, from its record: its training data, threat and measurements."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from resolvent.experiments.store.folder import Folder
from resolvent.models.checkpoint import WEIGHTS
from resolvent.models.shipped import Card
from resolvent.predictor.saved import weights_in

WHOLE = ("standard", "plus", "rand", "qi2024")  # complete presets of AutoAttack


def card_of(run: str | Path, name: str, *, licence: str = "", commit: str = "", command: str = "") -> Card | None:
    """The card of a finished classifier run; None for other folders. Accuracies in per cent, of the best checkpoint.

    Examples:
        >>> rv.predictor.card_of("no such folder", "mine") is None
        True
    """
    place = Path(run)
    record = Folder(place).record() if place.is_dir() else None
    if record is None or "training" not in record or record["task"].get("classes") is None:
        return None
    cell, task, best = record["cell"], record["task"], record["training"]["summary"]["best"]
    goal, attack = cell["goal"], _attack(record)
    return Card(
        name=name,
        model=_model(cell["model"]),
        parameters=record["training"]["parameters"],
        data=f"{task['name']}, {task['samples']['train']:,} training samples",
        input=_input(task),
        objective=f"{goal['kind']}, {cell['budget']['epochs']} epochs; best by validation",
        threat=_threat(goal),
        clean=_percent(best["test_clean"]),
        pgd10=_percent(attack.get("pgd10", {}).get("accuracy", best.get("test_robust"))),
        autoattack=_percent(_standing(attack)),
        samples=attack.get("samples") or task["samples"]["test"],
        standard_error=_percent(attack.get("standard_error")),
        certified={},
        seed=cell["seed"],
        commit=commit,
        command=command,
        licence=licence,
        weights=hashlib.sha256((weights_in(place) / WEIGHTS).read_bytes()).hexdigest(),
    )


def _attack(record: dict[str, Any]) -> dict[str, Any]:
    """The first complete AutoAttack on the best checkpoint."""
    held = record.get("attacks", {}).values()
    whole = (found for found in held if found.get("checkpoint") == "best" and found.get("preset") in WHOLE)
    return next(whole, {})


def _standing(attack: dict[str, Any]) -> float | None:
    """Accuracy under AutoAttack, also counting samples broken only by PGD-10."""
    if not attack:
        return None
    return float(attack["accuracy"]) - attack.get("pgd10", {}).get("missed", 0) / attack["samples"]


def _percent(share: float | None) -> Any:
    return None if share is None else round(100 * float(share), 2)


def _model(settings: dict[str, Any]) -> str:
    block = settings["block"]
    layer = block.get("layer", block).get("class", "?").removesuffix("Config")
    return f"{layer}, {settings['layers']} blocks of width {settings['d_model']}"


def _input(task: dict[str, Any]) -> str:
    if task["vocabulary"] is not None:
        return f"(b, {task['length']}) tokens below {task['vocabulary']}"
    return f"(b, {task['length']}, {task['channels']}) raw values"


def _threat(goal: dict[str, Any]) -> str | None:
    """The training threat; None if eps differs by channel."""
    if goal["kind"] == "standard":
        return None
    return f"{goal['norm']}, eps {goal['eps']:g}" if goal["eps"] is not None else f"{goal['norm']}, eps by channel"
