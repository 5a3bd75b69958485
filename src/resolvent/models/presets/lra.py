"""The Long Range Arena settings of S4, S4D, S5, S5-PTD and LRU as released or published; Mega's are in `lra_mega`,
S4-PTD's in `lra_ptd`, the Transformer's in `lra_transformer`.

S4      configs/experiment/lra of state-spaces/s4. S4D: the same table with 64 states and one of its initialisations.
S5      the released run commands of lindermanlab/S5.
S5-PTD  the same commands with the changes of AnnanYu/Approximate_Diagonal. All states are kept, as released, although
        our E is real and half would do; `clip` replaces its `force_neg`; B is drawn on Image, too.
LRU     rings and phases of the paper; widths and training of NicolasZucchet/minimal-LRU. Its images are in colour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from resolvent.models.config import ModelConfig, ResidualConfig
from resolvent.models.layer_config import LRUConfig, S4Config, S4DConfig, S5Config
from resolvent.models.presets.lra_mega import mega, mega_training
from resolvent.models.presets.lra_ptd import s4_ptd, s4_ptd_training
from resolvent.models.presets.lra_task import Task, lra_head, lra_input
from resolvent.models.presets.lra_transformer import transformer, transformer_training
from resolvent.models.presets.recipe import TrainConfig
from resolvent.usage.numbers import check_choice

Family = Literal["s4", "s4d", "s4_ptd", "s5", "s5_ptd", "lru", "mega", "transformer"]


@dataclass(frozen=True)
class _S4:
    d_model: int
    d_state: int
    prenorm: bool
    batch: int
    lr: float
    dropout: float
    epochs: int
    dt_min: float = 1e-3


_S4_TABLE: dict[Task, _S4] = {
    "listops": _S4(256, 4, False, 32, 0.01, 0.0, 40),
    "text": _S4(256, 4, True, 16, 0.01, 0.0, 32),
    "retrieval": _S4(256, 4, True, 64, 0.01, 0.0, 20),
    "image": _S4(512, 64, False, 50, 0.01, 0.1, 200),
    "pathfinder": _S4(256, 64, True, 64, 0.004, 0.0, 200),
    "pathx": _S4(256, 64, True, 16, 0.001, 0.0, 50, 1e-4),
}


@dataclass(frozen=True)
class _S5:
    layers: int
    d_model: int
    d_state: int
    blocks: int
    mixer: Literal["half_glu1", "half_glu2"]
    dropout: float
    weight_decay: float
    epochs: int
    warmup: int
    ssm_lr: float
    lr_factor: float
    batch: int
    c_init: Literal["lecun", "complex_normal"] = "lecun"
    dt_min: float = 1e-3


_S5_TABLE: dict[Task, _S5] = {
    "listops": _S5(8, 128, 16, 8, "half_glu2", 0.0, 0.04, 40, 1, 1e-3, 3, 50),
    "text": _S5(6, 256, 192, 12, "half_glu2", 0.1, 0.07, 35, 0, 1e-3, 4, 50),
    "retrieval": _S5(6, 128, 256, 16, "half_glu1", 0.0, 0.05, 20, 1, 1e-3, 2, 32),
    "image": _S5(6, 512, 384, 3, "half_glu1", 0.1, 0.07, 250, 1, 1e-3, 4.5, 50),
    "pathfinder": _S5(6, 192, 256, 8, "half_glu1", 0.05, 0.03, 200, 1, 9e-4, 5, 64),
    "pathx": _S5(6, 128, 256, 16, "half_glu1", 0.0, 0.06, 75, 1, 6e-4, 3, 32, "complex_normal", 1e-4),
}

_S5_PTD_CHANGES: dict[Task, dict[str, Any]] = {
    "listops": {"weight_decay": 0.05, "epochs": 35},
    "text": {"epochs": 40, "warmup": 5},
    "retrieval": {},
    "image": {"lr_factor": 5},
    "pathfinder": {"weight_decay": 0.05, "epochs": 230, "warmup": 10},
    "pathx": {"epochs": 90},
}

_LRU_RING: dict[Task, tuple[float, float, float]] = {
    "listops": (0.0, 0.99, 2 * math.pi),
    "text": (0.0, 0.9, 2 * math.pi),
    "retrieval": (0.5, 0.9, 2 * math.pi),
    "image": (0.9, 0.999, 2 * math.pi),
    "pathfinder": (0.9, 0.999, math.pi / 10),
    "pathx": (0.999, 0.9999, math.pi / 10),
}
_LRU_EPOCHS: dict[Task, int] = {
    "listops": 40, "text": 35, "retrieval": 20, "image": 180, "pathfinder": 200, "pathx": 75,
}  # fmt: skip


def lra(
    family: Family, task: Task, *, vocab: int | None = None, init: Literal["legs", "lin", "inv"] = "legs"
) -> ModelConfig:
    """The model of `family` for `task`. `vocab` overrides the task's default; `init` is for S4D only."""
    _check("lra", family, task)
    own = {"mega": mega, "transformer": transformer, "s4_ptd": s4_ptd, "lru": _lru}
    if family in own:
        return own[family](task, vocab)
    return _s5(family, task, vocab) if family in ("s5", "s5_ptd") else _s4(family, task, vocab, init)


def lra_training(family: Family, task: Task) -> TrainConfig:
    """How that model was trained."""
    _check("lra_training", family, task)
    own = {"mega": mega_training, "transformer": transformer_training, "s4_ptd": s4_ptd_training}
    if family in own:
        return own[family](task)
    if family == "lru":
        return TrainConfig(lr=1e-3, ssm_lr=5e-4, weight_decay=0.05, batch=50, epochs=_LRU_EPOCHS[task])
    if family in ("s5", "s5_ptd"):
        r = _s5_row(family, task)
        rate = r.ssm_lr * r.lr_factor
        return TrainConfig(rate, r.weight_decay, r.batch, r.epochs, warmup=r.warmup, ssm_lr=r.ssm_lr)
    row = _S4_TABLE[task]
    return TrainConfig(row.lr, 0.05, row.batch, row.epochs, ssm_lr=1e-3)


def _check(where: str, family: str, task: str) -> None:
    check_choice(where, "family", family, get_args(Family))
    check_choice(where, "task", task, get_args(Task))


def _s4(family: Family, task: Task, vocab: int | None, init: Literal["legs", "lin", "inv"]) -> ModelConfig:
    row = _S4_TABLE[task]
    dplr = S4Config(row.d_state, dt_min=row.dt_min, bidirectional=True)
    diagonal = S4DConfig(64, init, dt_min=row.dt_min, bidirectional=True)
    return ModelConfig(
        input=lra_input(task, vocab),
        block=ResidualConfig(dplr if family == "s4" else diagonal, mixer="glu", activation="gelu"),
        head=lra_head(task),
        d_model=row.d_model,
        layers=6,
        norm="batch",
        prenorm=row.prenorm,
        final_norm=row.prenorm,
        dropout=row.dropout,
    )


def _s5_row(family: Family, task: Task) -> _S5:
    row = _S5_TABLE[task]
    return replace(row, **_S5_PTD_CHANGES[task]) if family == "s5_ptd" else row


def _s5(family: Family, task: Task, vocab: int | None) -> ModelConfig:
    row = _s5_row(family, task)
    # Re(lam) is clipped in every task, while the published commands do so only for Image: |lam| < 1 then always holds
    layer = S5Config(row.d_state, row.blocks, c_init=row.c_init, dt_min=row.dt_min, bidirectional=True)
    if family == "s5_ptd":
        layer = replace(layer, init="ptd", conjugate=False)
    return ModelConfig(
        input=lra_input(task, vocab),
        block=ResidualConfig(layer, mixer=row.mixer, activation="gelu_tanh"),
        head=lra_head(task),
        d_model=row.d_model,
        layers=row.layers,
        norm="batch",
        prenorm=True,
        dropout=row.dropout,
    )


def _lru(task: Task, vocab: int | None) -> ModelConfig:
    return ModelConfig(
        input=lra_input(task, vocab, channels=3 if task == "image" else 1),
        block=ResidualConfig(LRUConfig(128, *_LRU_RING[task]), mixer="full_glu", activation="gelu_tanh"),
        head=lra_head(task),
        d_model=128,
        layers=6,
        norm="batch",
        prenorm=True,
        dropout=0.1,
    )
