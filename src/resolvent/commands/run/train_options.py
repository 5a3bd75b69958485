"""The options of `resolvent run train`, in groups as --help shows them. Each is declared here, and nowhere else.

None means not given: the default is where the option is read, and in its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

Rule = Literal["refuse", "zero", "mean", "ffill", "flag"]


def option(metavar: str) -> Any:
    """An option whose text states its own default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True)
class DataOptions:
    """For `train` only: the data."""

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "data": ("test", "id", "time", "ignore", "group", "task", "window", "horizon", "target", "header"),
    }

    data: Annotated[str | None, option("FILE")] = None
    """A task, a file (csv, tsv, npz, parquet, ts, safetensors) or a folder of npy."""
    test: Annotated[str | None, option("FILE")] = None
    """A file of the same kind with the test samples."""
    label: Annotated[str | None, option("COLUMN")] = None
    """The column of the labels; else label, class, target, y."""
    id: Annotated[str | None, option("COLUMN")] = None
    """If a row is one step: the column that says which sample it belongs to; else id. See --time for the order."""
    time: Annotated[str | None, option("COLUMN")] = None
    """If a row is one step: the column of times; else time. Without one, rows are taken in order."""
    ignore: Annotated[str | None, option("COLUMN,COLUMN")] = None
    """Columns to leave out."""
    group: Annotated[str | None, option("COLUMN")] = None
    """The column (or array of an archive) of samples that must stay in one split, e.g. the patient."""
    task: Annotated[
        Literal["classification", "regression", "forecast"] | None, option("{classification,regression,forecast}")
    ] = None
    """What the labels of a file are: classes, quantities, or the series' next values; by the file when left out."""
    window: Annotated[int | None, option("INT")] = None
    """Forecast: how many past steps the model reads."""
    horizon: Annotated[int | None, option("INT")] = None
    """Forecast: how many steps ahead; 1 when left out."""
    target: Annotated[str | None, option("CHANNEL")] = None
    """Forecast: the channel to predict; all of them when left out."""
    header: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """The first line of a CSV is a sample, not the names of the columns; the label comes first."""
    missing: Annotated[Rule | None, option("RULE")] = None
    """How gaps are filled: zero, mean, ffill or flag; refused when left out."""
    scale: Annotated[Literal["none", "standard", "minmax"] | None, option("HOW")] = None
    """Scale channels by the training part: standard or minmax; none when left out."""


@dataclass(frozen=True)
class ModelOptions:
    """For `train` only: the model."""

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "model": ("block", "preset", "init", "ads", "bidirectional", "gamma", "width", "layers"),
    }

    layer: Annotated[str | None, option("NAME")] = None
    """A layer, a block such as mamba, or reservoir; else s4d (--certified: l2ru)."""
    block: Annotated[str | None, option("NAME")] = None
    """What follows the layer in its residual block: glu (when left out), mlp, linear, half_glu1, half_glu2 or none;
    or a whole block that includes its layer: mamba, hawk, griffin, h3, mega, attention."""
    preset: Annotated[str | None, option("NAME")] = None
    """A published model (`resolvent list` names them) with the input and classes of your data, instead of a layer."""
    init: Annotated[str | None, option("NAME")] = None
    """The initial state matrix, e.g. legs, lin, inv, real or ptd for s4d; the layer's default when left out."""
    ads: Annotated[Literal["relu", "sigmoid", "tanh"] | None, option("{relu,sigmoid,tanh}")] = None
    """Adaptive scaling after every state-space layer."""
    bidirectional: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Run each layer in both directions of time."""
    certified: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Build a model with a Lipschitz bound, and certify it."""
    gamma: Annotated[float | None, option("BOUND")] = None
    """The Lipschitz bound of a certified model, 3 when left out: larger is more accurate, with smaller radii.
    Without --certified: the gain of each l2ru layer, 1 when left out."""
    width: Annotated[int | None, option("INT")] = None
    """Channels of the model; 64 when left out (250 systems for a reservoir)."""
    layers: Annotated[int | None, option("INT")] = None
    """Blocks of the model; 4 when left out."""


@dataclass(frozen=True)
class TrainingOptions:
    """For `train` only: how to train, and against which attack."""

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "attack": ("norm", "eps_raw", "bounds", "bounds_raw", "attack_steps", "beta", "awp"),
        "training": ("class_weights", "batch_size", "lr", "accumulate", "patience", "average"),
    }

    objective: Annotated[Literal["standard", "pgd-at", "trades"] | None, option("NAME")] = None
    """What to minimise: standard (when left out), pgd-at or trades."""
    norm: Annotated[Literal["linf", "l2", "l1"] | None, option("{linf,l2,l1}")] = None
    """The norm of the attack; linf when left out."""
    eps: Annotated[str | None, option("SIZE")] = None
    """The size of the attack, in units of the scaled data: 0.1, 8/255, or 0.1,0.5."""
    eps_raw: Annotated[str | None, option("SIZE")] = None
    """The same in the units of the file."""
    bounds: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The valid range of values in an attack, for all or for each channel; that of the data when left out."""
    bounds_raw: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The same in the units of the file."""
    attack_steps: Annotated[int | None, option("INT")] = None
    """Steps of the attack inside training; 10 when left out."""
    beta: Annotated[float | None, option("FLOAT")] = None
    """Weight of the robust term of TRADES; 6 when left out."""
    awp: Annotated[float | None, option("FLOAT")] = None
    """Train pgd-at or trades at the worst weights within this fraction of their norm (AWP; 0.005 is usual)."""
    class_weights: Annotated[str | None, option("{balanced,none,A,B,...}")] = None
    """Weight of each class: balanced (every class the same in total), a number for each, or none (equal samples)."""
    epochs: Annotated[int | None, option("INT")] = None
    """Passes over the data; 20 when left out."""
    batch_size: Annotated[int | None, option("INT")] = None
    """Samples of a step; 64 when left out."""
    lr: Annotated[float | None, option("FLOAT")] = None
    """The learning rate; 0.004 when left out (0.001 for a reservoir)."""
    accumulate: Annotated[int | None, option("INT")] = None
    """Pieces in which a batch passes through the model, for less memory with the same gradient; 1 when left out."""
    patience: Annotated[int | None, option("INT")] = None
    """Stop after this many evaluations without improvement; all epochs when left out."""
    average: Annotated[Literal["none", "ema", "swa"] | None, option("{none,ema,swa}")] = None
    """Measure and keep a mean of the weights: exponential over the steps, or of the last half of the epochs."""
