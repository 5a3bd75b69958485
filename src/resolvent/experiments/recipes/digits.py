"""Cells on the embedded digits: 64 steps, small models, minutes on two cores; and the table that compares them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from resolvent.blocks.ads import AdSKind
from resolvent.experiments.cell import AttackPlan, Budget, Cell, TaskChoice
from resolvent.experiments.objective_settings import Goal, Kind
from resolvent.experiments.recipes.size import Size
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
    S4DConfig,
    S5Config,
)
from resolvent.models.presets import l2ru_classifier
from resolvent.usage.numbers import check_choice

EPS = 0.1  # of inputs in [0, 1]
WIDTH = 32
COMPARED = ("s4", "s4+relu", "dss", "dss+relu", "s5", "mega", "mamba")
SCALES: dict[str, Any] = {"dt_min": 1e-2, "dt_max": 0.5}  # time scales of 64 steps


def digits_robustness(size: Size = "full") -> list[Cell]:
    """S4, DSS, S5, Mega, Mamba, and S4 and DSS with AdS on the digits: three ways of training at eps 0.15, three seeds.

    Checkpoints are chosen on validation; how Mega's settings were is told in docs/runs.md.
    """
    kinds: tuple[Kind, ...] = get_args(Kind)
    cells = [digits_cell("digits-robustness", s, k, preset="standard", eps=0.15) for s in COMPARED for k in kinds]
    if size == "small":
        fast = AttackPlan("fast", "linf", 0.15, samples=100, on=("best", "last"))
        return [replace(cell, attacks=(fast,), attribution=True) for cell in cells]
    return [replace(cell.seeded(seed), attribution=True) for cell in cells for seed in (0, 1, 2)]


def digits_model(structure: str, width: int = WIDTH) -> ModelConfig:
    """Two pre-norm blocks; the output is read at the last step. `s4+relu` is S4 with that adaptive scaling."""
    if structure == "l2ru":
        return l2ru_classifier()
    name, _, ads = structure.partition("+")
    layers: dict[str, Any] = {
        "s4": S4Config(16, **SCALES),
        "s4d": S4DConfig(16, **SCALES),
        "dss": DSSConfig(16, "softmax", **SCALES),
        "s5": S5Config(width, **SCALES),
        "s5-ptd": S5Config(width, init="ptd", **SCALES),
    }
    whole: dict[str, Any] = {
        "mega": MegaConfig(z=16, hidden=2 * width, ffn=2 * width, d_state=16, max_length=64),
        "mamba": MambaConfig(8),
    }
    check_choice("digits", "structure", name, [*layers, *whole, "l2ru"])
    if ads:
        check_choice("digits", "adaptive scaling", ads, get_args(AdSKind))
    return ModelConfig(
        input=ChannelsConfig(1),
        block=whole[name] if name in whole else ResidualConfig(layers[name], mixer="linear"),
        head=ClassifierConfig(10, "last"),
        d_model=width,
        layers=2,
        final_norm=True,
        ads=AdSConfig(ads) if ads else None,  # type: ignore[arg-type]  # checked above
    )


def digits_cell(
    recipe: str, structure: str, kind: Kind, *, epochs: int = 20, preset: str = "fast", eps: float = EPS
) -> Cell:
    """Train one structure one way, attack it with AutoAttack at its training eps."""
    budget = Budget(
        epochs=epochs,
        batch_size=64,
        lr=4e-3 if structure == "mamba" else 1e-2,
        weight_decay=0.0 if structure == "l2ru" else 2e-4,  # decay would shrink gains that are prescribed anyway
        warmup=min(1.0, epochs / 2),
        clip=1.0,
        evaluate_every=max(1, epochs // 10),
        track_seen=256,
        choose="clean" if kind == "standard" else "robust",  # standard training only lowers robust accuracy
    )
    return Cell(
        recipe,
        (structure, "digits", kind),
        digits_model(structure),
        TaskChoice("digits"),
        Goal(kind, "linf", eps, steps=7, beta=6.0),
        budget,
        (AttackPlan(preset, "linf", eps, samples=200, on=("best", "last")),),
        attribution=kind != "standard",
    )
