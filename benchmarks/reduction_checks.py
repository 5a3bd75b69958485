"""Trained models with ever fewer states: certified error of each layer, the worst input found, accuracy and speed.

    python -m benchmarks.reduction_checks --out benchmarks/results/reduction_checks.json

For each error that is allowed: d_state before and after, the largest share of the certificate that a gradient ascent on
||y - y_small|| / ||u|| uses up in any layer (in float64; above 1 it is violated), accuracy on the test set before and
after, and the CPU time of a pass relative to the first model (quickest of several, both in turns).
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.about import about, processor
from resolvent.data import Task, load_task
from resolvent.models import ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, S5Config, build_model
from resolvent.models.config import ChannelsConfig
from resolvent.predictor.reduction import CannotReduce, reduce_model
from resolvent.training import FitSettings, fit

ERRORS = (0.5, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3)
LAYERS: dict[str, Any] = {
    "S4D-LegS": S4DConfig(64, dt_min=1e-2, dt_max=0.3),
    "S4D-Lin": S4DConfig(64, init="lin", dt_min=1e-2, dt_max=0.3),
    "S4D-Real": S4DConfig(32, init="real", dt_min=1e-2, dt_max=0.3),
    "S5": S5Config(64, dt_min=1e-2, dt_max=0.3),
}
LENGTH, STARTS, STEPS, PASSES = 256, 8, 40, 15


def train(task: Task, layer: Any, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    config = ModelConfig(ChannelsConfig(1), ResidualConfig(layer), ClassifierConfig(10), d_model=16, layers=2)
    model = build_model(config)
    fit(model, task, "standard", FitSettings(epochs=epochs, batch_size=32, lr=1e-2))
    return model.eval()


def worst_ratio(old: Any, new: Any) -> float:
    """The largest ||y - y_small|| / ||u|| that gradient ascent finds, for layers in float64."""
    old, new = (copy.deepcopy(layer).double().requires_grad_(False) for layer in (old, new))
    g = torch.Generator().manual_seed(0)
    u = torch.randn(STARTS, LENGTH, old.d_model, dtype=torch.float64, generator=g).requires_grad_()
    optimiser, best = torch.optim.Adam([u], lr=0.1), 0.0
    for _ in range(STEPS):
        ratio = (old(u)[0] - new(u)[0]).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)
        best = max(best, float(ratio.detach().max()))
        optimiser.zero_grad()
        (-ratio.sum()).backward()
        optimiser.step()
    return best


@torch.no_grad()
def speed(first: nn.Module, second: nn.Module, x: torch.Tensor) -> float:
    """CPU time of the second over that of the first."""
    quickest = [float("inf")] * 2
    for _ in range(PASSES):
        for i, model in enumerate((first, second)):
            begun = time.process_time()
            model(x)
            quickest[i] = min(quickest[i], time.process_time() - begun)
    return quickest[1] / quickest[0]


@torch.no_grad()
def accuracy(model: nn.Module, task: Task) -> float:
    return float((model(task.test.x).argmax(1) == task.test.y).double().mean())


def check(task: Task, layer: Any, epochs: int) -> list[dict[str, Any]]:
    model, rows = train(task, layer, epochs), []
    clean = accuracy(model, task)
    for error in ERRORS:
        try:
            small, found = reduce_model(model, error)
        except CannotReduce as refused:
            rows.append({"error": error, "refused": str(refused)})
            continue
        used = [worst_ratio(model.get_submodule(e.name), small.get_submodule(e.name)) / e.error for e in found.layers]
        rows.append({
            "error": error, "d_state": [found.before, found.after], "certified": [e.error for e in found.layers],
            "measured": [e.measured for e in found.layers], "twice_the_dropped": [e.truncation for e in found.layers],
            "largest_share": max(used), "accuracy": [clean, accuracy(small.eval(), task)],
            "time": speed(model, small, task.test.x),
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    task, begun = load_task("digits"), time.perf_counter()
    found = {name: check(task, layer, given.epochs) for name, layer in LAYERS.items()}
    shares = [row["largest_share"] for rows in found.values() for row in rows if "largest_share" in row]
    record = about(processor(1)) | {"violations": sum(share > 1 for share in shares), "largest_share": max(shares)}
    record |= {"models": found, "seconds": round(time.perf_counter() - begun, 1)}
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
