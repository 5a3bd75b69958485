"""Every threat beside chance at the same budget: sensors, ListOps and IMDb, small models trained here.

    python -m benchmarks.threat_checks --out benchmarks/results/threat_checks.json

For each threat the share of rightly classified test samples that the attack breaks, and that chance breaks: the best of
ten random perturbations of the same budget for each sample (for the universal one the best of ten for all samples, for
tokens ten random exchanges). `obeyed` says that every perturbation kept to its threat, checked here anew. Threats of
real numbers meet ListOps and IMDb in the space of embeddings, with sizes relative to the deviation of an embedding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.about import about, processor
from resolvent.attacks import (
    APGD,
    PGD,
    Draws,
    HopSkipJump,
    SparseSteps,
    Threat,
    Universal,
    UniversalSettings,
    substitute,
    universal,
)
from resolvent.data import Task, from_arrays, load_task
from resolvent.models import ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, TokensConfig, build_model
from resolvent.models.config import ChannelsConfig
from resolvent.training import FitSettings, fit

RANDOM = 10
SAMPLES = 64


def sensors() -> Task:
    """Four gestures as three channels of 48 steps: chirps and pulses with noise and random phases."""
    g = torch.Generator().manual_seed(0)
    n, l = 1200, 48
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(l)[None, :, None] / l
    phase = 6.28 * torch.rand(n, 1, 3, generator=g)
    speed = (1.5 + y)[:, None, None] + torch.tensor([0.0, 0.4, 0.8])
    x = torch.sin(6.28 * speed * t + phase) + 0.3 * torch.randn(n, l, 3, generator=g)
    return from_arrays(x.numpy(), y.numpy(), name="sensors")


def train(task: Task, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    entry: Any = ChannelsConfig(task.channels) if task.channels else TokensConfig(task.vocabulary or 2)
    block = ResidualConfig(S4DConfig(16, dt_min=1e-2, dt_max=0.3))
    model = build_model(ModelConfig(entry, block, ClassifierConfig(task.classes or 2), d_model=16, layers=2))
    fit(model, task, "standard", FitSettings(epochs=epochs, batch_size=64, lr=5e-3))
    return model.eval()


def right_rows(model: nn.Module, task: Task) -> tuple[Tensor, Tensor, Tensor | None]:
    """The first test samples that the model has right, with their lengths."""
    test = task.test.select(torch.arange(min(len(task.test), 4 * SAMPLES)))
    right = (~broken(model, test.x, test.y, test.lengths)).nonzero().squeeze(1)[:SAMPLES]
    x = test.x[right] if test.x.is_floating_point() else test.x[right].long()
    return x, test.y[right], None if test.lengths is None else test.lengths[right]


def broken(model: nn.Module, x: Tensor, y: Tensor, lengths: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(x, lengths).argmax(1) != y
    return found


class Samples(NamedTuple):
    """Rightly classified ones; lengths where they are padded."""

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None

    @property
    def given(self) -> dict[str, Any]:
        return {} if self.lengths is None else {"lengths": self.lengths}

    def fit(self, threat: Threat) -> Threat:
        return (threat if self.lengths is None else threat.with_lengths(self.lengths, self.x.shape[1])).check(self.x)


def by_chance(model: nn.Module, data: Samples, threat: Threat, target: Tensor | None = None) -> float:
    """The share that any of ten random perturbations breaks (or brings to its target)."""
    fit_ = data.fit(threat)
    any_ = torch.zeros(len(data.x), dtype=torch.bool)
    for seed in range(RANDOM):
        point = fit_.random_start(data.x, Draws.of(data.x, seed), surface=True)
        if target is None:
            any_ |= broken(model, point, data.y, data.lengths)
        else:
            any_ |= hit(model, point, target, data.lengths)
    return float(any_.double().mean())


def hit(model: nn.Module, x: Tensor, target: Tensor, lengths: Tensor | None) -> Tensor:
    return ~broken(model, x, target, lengths)


def row(model: nn.Module, data: Samples, threat: Threat, attack: Any) -> dict[str, Any]:
    found = attack(model, data.x, data.y, threat, **data.given)
    share = float(broken(model, found.x_adv, data.y, data.lengths).double().mean())
    obeyed = bool(data.fit(threat).contains(found.x_adv, data.x, tol=1e-6).all())
    return {"broken": share, "chance": by_chance(model, data, threat), "obeyed": obeyed}


def targeted_row(model: nn.Module, data: Samples, threat: Threat, classes: int) -> dict[str, Any]:
    target = (data.y + 1) % classes
    found = PGD(steps=40)(model, data.x, data.y, threat, target=target, **data.given)
    share = float(hit(model, found.x_adv, target, data.lengths).double().mean())
    obeyed = bool(data.fit(threat).contains(found.x_adv, data.x, tol=1e-6).all())
    return {"broken": share, "chance": by_chance(model, data, threat, target), "obeyed": obeyed}


def universal_row(model: nn.Module, data: Samples, made_from: Samples, threat: Threat) -> dict[str, Any]:
    """Made from other samples than those that it is tried on."""
    parts, own = (tuple(part for part in each if part is not None) for each in (made_from, data))
    made, home = universal(model, parts, threat, UniversalSettings(epochs=8)), torch.zeros_like(data.x[:1])
    noise = [threat.check(home).random_start(home, Draws.of(home, s), surface=True) for s in range(RANDOM)]
    chance = max(1 - Universal(delta, threat, 0.0).accuracy(model, own) for delta in noise)
    inside = bool(threat.check(home).contains(made.delta, home, tol=1e-6).all())
    return {"broken": 1 - made.accuracy(model, own), "chance": chance, "obeyed": inside}


def check_sensors(task: Task, model: nn.Module) -> dict[str, Any]:
    data, made_from = Samples(*right_rows(model, task)), Samples(task.train.x[:256], task.train.y[:256])
    return {
        "eps for each channel": row(model, data, Threat("linf", (0.15, 0.15, 0.3)), APGD()),
        "3 of 48 time steps": row(model, data, Threat("linf", 1.0, steps=3), SparseSteps()),
        "band 0 to 0.1": row(model, data, Threat("linf", 0.25, band=(0.0, 0.1)), APGD()),
        "answers alone, l2": row(model, data, Threat("l2", 2.0), HopSkipJump(iterations=10, queries=40)),
        "universal": universal_row(model, data, made_from, Threat("linf", 0.35)),
        "targeted": targeted_row(model, data, Threat("linf", 0.4), 4),
    }


class Behind(nn.Module):
    """A model of tokens behind its embedding."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, e: Tensor, lengths: Tensor | None = None) -> Tensor:
        found: Tensor = self.model.from_embedding(e, lengths)
        return found


@torch.no_grad()
def embed(model: Any, x: Tensor, y: Tensor, lengths: Tensor | None) -> Samples:
    return Samples(model.embed(x.long()), y, lengths)


def check_embeddings(task: Task, model: Any) -> dict[str, Any]:
    """The threats of real numbers on embedded tokens; a unit is the deviation of an entry of the table."""
    train = task.train.select(torch.arange(256))
    data, made_from = embed(model, *right_rows(model, task)), embed(model, train.x, train.y, train.lengths)
    behind, unit = Behind(model), float(data.x.std())
    wide = tuple([0.2 * unit] * (data.x.shape[2] // 2) + [0.05 * unit] * (data.x.shape[2] - data.x.shape[2] // 2))
    return {
        "embedding, linf": row(behind, data, Threat("linf", 0.1 * unit), APGD()),
        "embedding, eps for each channel": row(behind, data, Threat("linf", wide), APGD()),
        "embedding, 3 time steps": row(behind, data, Threat("linf", 2.0 * unit, steps=3), SparseSteps()),
        "embedding, band 0 to 0.1": row(behind, data, Threat("linf", 0.2 * unit, band=(0.0, 0.1)), APGD()),
        "embedding, answers alone, l2": row(
            behind, data, Threat("l2", 4.0 * unit), HopSkipJump(iterations=8, queries=30)
        ),
        "embedding, universal": universal_row(behind, data, made_from, Threat("linf", 0.3 * unit)),
        "embedding, targeted": targeted_row(behind, data, Threat("linf", 0.3 * unit), task.classes or 2),
    }


def check_tokens(task: Task, model: nn.Module, k: int) -> dict[str, Any]:
    x, y, lengths = right_rows(model, task)
    size, rows = task.vocabulary or 2, {}
    own = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    any_ = torch.zeros(len(x), dtype=torch.bool)
    for seed in range(RANDOM):
        g, other = torch.Generator().manual_seed(seed), x.clone()
        for line, n in zip(other, own.tolist(), strict=True):
            line[torch.randperm(n, generator=g)[:k]] = torch.randint(1, size, (k,), generator=g)
        any_ |= broken(model, other, y, lengths)
    for name, beam in (("greedy", 1), ("beam of 4", 4)):
        found = substitute(model, x, y, k, beam=beam, lengths=lengths)
        share = float(broken(model, found.tokens, y, lengths).double().mean())
        obeyed = bool(((found.tokens != x).sum(1) <= k).all())
        rows[f"{k} substitutions, {name}"] = {"broken": share, "chance": float(any_.double().mean()), "obeyed": obeyed}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begun, found = time.perf_counter(), {}
    task = sensors()
    found["sensors"] = check_sensors(task, train(task, 8))
    print(json.dumps(found, indent=1), flush=True)
    for name, options, samples, epochs in (
        ("listops", {"samples": (1500, 100, 400), "around": 40, "lengths": False}, None, 6),
        ("imdb", {"length": 256}, 1500, 4),
    ):
        task = load_task(name, **options)  # type: ignore[arg-type]
        task = task if samples is None else task.head(samples)
        model = train(task, epochs)
        found[name] = check_tokens(task, model, 3) | check_embeddings(task, model)
        print(json.dumps(found[name], indent=1), flush=True)
    record = about(processor(1)) | {"threats": found, "seconds": round(time.perf_counter() - begun, 1)}
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
