"""The generalisation stage: the bound of a trained selective block, its gap, and its norms during training."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from resolvent.analysis import NormTracker, SelectiveTensors, generalisation_bound, selective_norms
from resolvent.experiments.cell import Cell
from resolvent.experiments.work import Work
from resolvent.lowering.describe import outline
from resolvent.lowering.program import Embedding, Recurrence, walk
from resolvent.models import Model
from resolvent.models.parts import last_weight
from resolvent.training import measure
from resolvent.training.fit import Watch


def selective_tensors(model: nn.Module) -> SelectiveTensors:
    """The tensors of a model with one selective block after an embedding; u is the token table."""
    chain = outline(model)
    layers = [n.module for n in walk(chain) if isinstance(n, Recurrence) and n.kind == "scalar_s6"]
    tables = [n.module for n in walk(chain) if isinstance(n, Embedding)]
    if len(layers) != 1 or len(tables) != 1:
        raise ValueError(
            f"bound: expected one ScalarS6 layer behind an embedding, as presets.selective_block makes it; got "
            f"{len(layers)} in {type(model).__name__}."
        )
    layer = layers[0]
    return SelectiveTensors(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, tables[0].weight)


def norms_watch(cell: Cell) -> Watch | None:
    """The `watch` function for `fit`; None if no bound is planned."""
    return None if cell.bound is None else NormTracker(selective_tensors)


def bound_generalisation(work: Work) -> dict[str, Any]:
    """The bound for the last weights, m training samples of T steps, and the actual gap."""
    plan = work.cell.bound
    assert plan is not None
    model = work.trained("last")
    assert isinstance(model, Model)
    t, m = selective_tensors(model), len(work.task.train)
    assert t.u is not None
    head = last_weight(model.head)
    assert head is not None
    norms = selective_norms(t.W_B, t.W_C, t.A, t.p, t.q, head, t.u, T=work.task.length)
    record: dict[str, Any] = {"T": work.task.length, "s_A": norms.s_A, "gap": gap(work, model)}
    try:
        return record | generalisation_bound(norms, m, plan.delta, ceiling=plan.ceiling).as_dict()
    except ValueError as refused:  # too few samples for the covers
        return record | {"bound": None, "reason": str(refused)}


def gap(work: Work, model: Model) -> dict[str, float | None]:
    """Loss and accuracy on the training and the test split; loss: test - train, accuracy: train - test."""
    train, test = (measure(model, split.to(work.device)) for split in (work.task.train, work.task.test))
    found = {f"{name}_{what}": row[what] for name, row in (("train", train), ("test", test)) for what in row}
    found |= {"loss": test["loss"] - train["loss"], "accuracy": train["clean"] - test["clean"]}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
