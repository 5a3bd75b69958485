"""Whether a training step is right on the very batch that is timed: benchmarks/gpu asks before it tells a speed.

    full size   logits and input gradients of the pass that a step runs, inside `frozen()` and outside, against our
                modules in float64: whole batches and the parameters' gradients, in chunks of rows, or a few rows alone
    recorded    a step that replays its recording, after the parameters have moved, against the same step of a copy of
                the model, which has none

Distances are ‖got − want‖ / ‖want‖.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.eager import Eager
from resolvent.training.objective import Objective
from resolvent.training.step import cuda_graph
from resolvent.training.step.batch import Batch, criterion

LIMIT = 2e-2  # of bf16 against float64, and of a recorded step: a last bit turns the sign of a slope, and so a step
CHUNK = 32  # rows at a time in float64
MOVED = 0.05  # by which parameters move, relative to each: what a recording must see
Precision = Callable[[], AbstractContextManager[Any]]


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Logits and the gradients of the summed loss, by the names that our model's parameters have."""
    x = x.clone().requires_grad_()
    own = model.model if isinstance(model, Eager) else model
    named = dict(own.named_parameters())
    logits = model(x)
    leaves = [x, *named.values()]
    slopes = torch.autograd.grad(criterion(logits.double(), y).sum(), leaves, allow_unused=True)
    found = [torch.zeros_like(t) if g is None else g for g, t in zip(slopes, leaves, strict=True)]
    return {"logits": logits.detach(), "x": found[0], **dict(zip(named, found[1:], strict=True))}


def attacked(model: Any, batch: Batch) -> Tensor:
    """The input gradient inside `frozen()`, as an attack asks for it."""
    with model.frozen():
        x = batch.x.clone().requires_grad_()
        return torch.autograd.grad(criterion(model(x).float(), batch.y).sum(), x)[0]


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def learnt(found: dict[str, Tensor]) -> Tensor:
    """All parameters' gradients as one vector."""
    return torch.cat([g.flatten().double() for name, g in found.items() if name not in ("logits", "x")])


# -- full size ---------------------------------------------------------------------------------------------------------


def full_size(model: nn.Module, batch: Batch, precision: Precision, whole: bool) -> dict[str, float]:
    """The pass over all of `batch` against float64: `whole`, or its first, middle and last rows alone."""
    b = len(batch.x)
    with precision():
        got, still = gradients(model, batch.x, batch.y), attacked(model, batch)
    rows = torch.tensor(range(b) if whole else sorted({0, b // 2, b - 1}), device=batch.x.device)
    want = _truth(model, batch, rows)
    pairs = {"logits": got["logits"], "x": got["x"], "x, frozen": still}
    found = {f"{name}, full size": distance(t[rows], want[name.split(",")[0]]) for name, t in pairs.items()}
    return found | ({"parameters, full size": distance(learnt(got), learnt(want))} if whole else {})


def _truth(model: nn.Module, batch: Batch, rows: Tensor) -> dict[str, Tensor]:
    """`gradients` of these rows by the modules in float64."""
    wide = copy.deepcopy(model).double()
    parts = [gradients(wide, batch.x[part].double(), batch.y[part]) for part in rows.split(CHUNK)]
    joined = {name: [part[name] for part in parts] for name in parts[0]}
    return {name: torch.cat(t) if name in ("logits", "x") else torch.stack(t).sum(0) for name, t in joined.items()}


# -- recorded ----------------------------------------------------------------------------------------------------------


def recorded(model: nn.Module, batch: Batch, objective: Objective, precision: Precision) -> dict[str, float]:
    """The step of a model that has taken some already, moved away from them, against that of a copy, which has not.

    It must be the same `objective`: a recording belongs to one. "repeated": nothing was replayed, as on a CPU.
    """
    before, replays = _step(model, batch, objective, precision)[1], _replays(model)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + MOVED * torch.randn_like(p))
    got, want = (_step(m, batch, objective, precision) for m in (model, copy.deepcopy(model)))
    stale = distance(before, want[1])
    if not stale > 2 * LIMIT:
        raise RuntimeError(f"the gradients moved by {stale:.1e} only: a recording of older parameters would pass")
    how = "recorded" if _replays(model) > replays else "repeated"
    return {f"{name}, {how}": distance(a, w) for name, a, w in zip(("logits", "parameters"), got, want, strict=True)}


def _replays(model: nn.Module) -> int:
    known = cuda_graph._recorded.get(model, (None, {}))[1].values()
    return sum(r.replays for r in known if isinstance(r, cuda_graph._Recording))


def _step(model: nn.Module, batch: Batch, objective: Objective, precision: Precision) -> tuple[Tensor, Tensor]:
    """Logits, and all parameters' gradients as one vector."""
    with precision():
        loss = objective(model, batch)
    leaves = list(model.parameters())
    slopes = torch.autograd.grad(loss.value, leaves, allow_unused=True)
    known = [torch.zeros_like(p) if g is None else g for g, p in zip(slopes, leaves, strict=True)]
    return loss.output.detach().clone(), torch.cat([g.flatten().double() for g in known])
