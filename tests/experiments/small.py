"""A cell that trains in a second, for tests and for processes that are killed on purpose.

python small.py FOLDER      runs it there
"""

from __future__ import annotations

import sys

import torch

from resolvent.experiments import AttackPlan, Budget, Cell, Goal, TaskChoice, run_cell
from resolvent.models import ChannelsConfig, ClassifierConfig, LRUConfig, ModelConfig, ResidualConfig


def small_cell(**changes: object) -> Cell:
    model = ModelConfig(
        ChannelsConfig(1), ResidualConfig(LRUConfig(8), mixer="linear"), ClassifierConfig(10, "last"), 8, 1
    )
    held = {
        "model": model,
        "task": TaskChoice("digits", samples=96),
        "goal": Goal("pgd-at", eps=0.05, steps=2),
        "budget": Budget(epochs=3, batch_size=32, lr=1e-2, save_every=1),
        "attacks": (AttackPlan("fast", eps=0.05, samples=16, on=("best", "last"), batch_size=8, probe=4),),
    }
    return Cell("small", ("lru", "digits"), **held | changes)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_cell(small_cell(), sys.argv[1], tell=lambda line: None)
    print("done", flush=True)
