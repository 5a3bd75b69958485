"""Fill `models/shipped` from records: weights, preprocessing and a card of what was measured.

    python benchmarks/cards.py cifar10 benchmarks/results/headline_text
    python benchmarks/cards.py digits runs/certified-digits/l2ru-digits/seed-0 --commit COMMIT
    python benchmarks/cards.py attack src/resolvent/models/shipped/digits-l2ru-certified     # its shipped weights
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

import resolvent as rv
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.data.tasks.cifar import CLASSES
from resolvent.disk import write_json, write_text
from resolvent.models import count_parameters, save_model
from resolvent.models.shipped import CARD, HERE, Card

RADII = (0.1, 0.25, 0.5)


def write(name: str, folder: Path, preprocess: Preprocess, record: dict[str, Any]) -> None:
    model = rv.load_model(folder)
    place = HERE / name
    shutil.rmtree(place, ignore_errors=True)
    save_model(model, place, preprocess)
    weights = hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    card = Card(name=name, parameters=count_parameters(model), weights=weights, **record)
    write_json(place / CARD, vars(card), indent=2)
    write_text(place / "README.md", card.markdown())
    print(card.markdown())


def cifar10(folder: Path) -> None:
    record = json.loads(folder.with_suffix(".json").read_text(encoding="utf-8"))
    best = record["results"]["best"]
    ones, none = (1.0,) * 3, (0.0,) * 3
    how = Preprocess(inputs=3, classes=10, class_names=CLASSES, centre=none, width=ones, fill=none, low=none, high=ones,
                     bounds=(0.0, 1.0), length=1024)  # fmt: skip
    write("scifar10-s4-pgd-at", folder / "checkpoint" / "best", how, {
        "model": "S4, four residual blocks of width 128 with GELU",
        "data": "sequential CIFAR-10, 45,000 training images",
        "input": "(b, 1024, 3): the pixels row by row, colours in [0, 1]",
        "objective": "PGD-AT, 10 steps, 180 epochs; best by validation",
        "threat": "Linf, eps 0.031 (the published 8/255, rounded)",
        "clean": best["clean"], "pgd10": best["PGD-10"], "autoattack": best["AA"],
        "samples": record["samples"]["AutoAttack"], "standard_error": best["AA standard error"],
        "certified": {}, "seed": 5, "commit": record["commit"], "command": record["command"],
        "licence": "Apache-2.0",
    })  # fmt: skip


def digits(run: Path, commit: str) -> None:
    cell = json.loads((run / "cell.json").read_text(encoding="utf-8"))
    ready, task = rv.load(run), rv.load_task("digits")
    gain = rv.analysis.certified_gain(ready.model.gain_parts(task.length))
    found = rv.analysis.certify(ready.model, task.test.x, task.test.y, gain)
    write("digits-l2ru-certified", run / "checkpoint" / "best", ready.preprocess, {
        "model": f"L2RU between Lipschitz maps, L2 gain at most {math.ceil(100 * float(gain.value)) / 100:.2f}",
        "data": "the embedded 8 x 8 digits as sequences of 64",
        "input": "(b, 64, 1): the pixels row by row in [0, 1]",
        "objective": "standard training; best by validation",
        "clean": round(100 * float(found.correct.double().mean()), 2), **attack(ready.model, task),
        "certified": {f"{r:g}": round(100 * float(found.accuracy(r)), 2) for r in RADII},
        "seed": cell["seed"], "commit": commit,
        "command": "resolvent run certified-digits --only l2ru,digits --seeds 0", "licence": "Apache-2.0",
    })  # fmt: skip


def attack(model: nn.Module, task: rv.Task) -> dict[str, Any]:
    """What a card says of attacks on the whole test part, within the second of the certified radii."""
    eps = RADII[1]
    threat, (x, y) = rv.Threat("l2", eps, bounds=(0, 1)), (task.test.x, task.test.y)
    pgd = rv.attacks.pgd(model, x, y, threat, steps=10).success
    robust = rv.autoattack(model, x, y, threat).accuracy
    error = math.sqrt(robust * (1 - robust) / len(y))
    return {
        "threat": f"L2, eps {eps:g}; trained without an attack",
        "pgd10": round(100 * (1 - float(pgd.double().mean())), 2), "autoattack": round(100 * robust, 2),
        "samples": len(y), "standard_error": round(100 * error, 2),
    }  # fmt: skip


def attack_shipped(folder: Path) -> None:
    found = attack(rv.models.pretrained(folder.name), rv.load_task("digits"))
    made = replace(rv.models.card(folder.name), **found)
    write_json(folder / CARD, vars(made), indent=2)
    write_text(folder / "README.md", made.markdown())
    print(made.markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("cifar10", "digits", "attack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", default="")
    asked = parser.parse_args()
    if asked.kind == "cifar10":
        cifar10(asked.folder)
    elif asked.kind == "attack":
        attack_shipped(asked.folder)
    else:
        digits(asked.folder, asked.commit)


if __name__ == "__main__":
    main()
