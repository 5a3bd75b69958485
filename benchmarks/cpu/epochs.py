"""How many epochs `rv.SequenceClassifier` takes by default, and what it leaves out to choose among them:
cross-validation on training parts; no test part is read.

    python -m benchmarks.cpu.epochs                # five folds, twice, on four sets of aeon's; an hour on one core
    python -m benchmarks.cpu.epochs rule 60        # the default rule, and 60 epochs
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch
from aeon import datasets
from sklearn.model_selection import StratifiedKFold

import resolvent as rv

SETS = {
    "ItalyPowerDemand": datasets.load_italy_power_demand,
    "BasicMotions": datasets.load_basic_motions,
    "GunPoint": datasets.load_gunpoint,
    "ArrowHead": datasets.load_arrow_head,
}
LEFT = {"validation": 0.15}  # the default when these were compared
SETTINGS: dict[str, dict[str, Any]] = {
    "rule": {},
    "rule, 15 % left out": LEFT,
    "30": LEFT | {"epochs": 30},
    "30, batches of 16": LEFT | {"epochs": 30, "batch_size": 16},
    "60": LEFT | {"epochs": 60},
    "100": LEFT | {"epochs": 100},
}


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or SETTINGS:
        found = {where: validate(where, SETTINGS[name]) for where in SETS}
        print(name, {where: round(share, 1) for where, share in found.items()}, flush=True)
        print("  mean", round(statistics.mean(found.values()), 2), flush=True)


def validate(where: str, settings: dict[str, Any]) -> float:
    """Accuracy in per cent over five folds of the training part, twice."""
    x, y = SETS[where](split="train")
    shares = []
    for seed in range(2):
        for train, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(x, y):
            model = rv.SequenceClassifier(layout="ncl", random_state=seed, **settings).fit(x[train], y[train])
            shares.append(float((model.predict(x[held]) == y[held]).mean()))
    return 100 * statistics.mean(shares)


if __name__ == "__main__":
    main()
