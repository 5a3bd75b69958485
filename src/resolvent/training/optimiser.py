"""AdamW or Adam on the model's parameter groups, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from resolvent.blocks.block import merge_groups
from resolvent.training.settings import FitSettings


def make_optimiser(model: nn.Module, settings: FitSettings) -> torch.optim.Optimizer:
    """The optimiser; each group stores its full rate as `base_lr`, which `set_rate` scales."""
    groups = parameter_groups(model) if settings.groups else [{"params": list(model.parameters())}]
    made = []
    for group in groups:
        params = [p for p in group["params"] if p.requires_grad]
        own = {name: value for name, value in group.items() if name != "params"}
        lr = settings.ssm_lr if own and settings.ssm_lr is not None else own.get("lr", settings.lr)
        if params:
            made.append({"weight_decay": settings.weight_decay, **own, "params": params, "lr": lr, "base_lr": lr})
    if not made:
        raise ValueError("fit: the model has no parameter to train; is requires_grad off throughout?")
    make = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    quick = all((p.is_cuda or p.is_cpu) and p.is_floating_point() for p in model.parameters())  # one call, not dozens
    fused = True if quick else None
    return make(made, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused)


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """The groups of `optim_groups()` of the model, or of the outermost modules that define it; the rest by default.

    Examples:
        >>> groups = rv.training.parameter_groups(rv.S4D(4, 8))
        >>> any("lr" in group for group in groups)
        True
    """
    return merge_groups(_collect_offered(module), module)


def rate(step: int, per_epoch: int, settings: FitSettings, losses: Iterable[float] = ()) -> float:
    """Factor of the learning rate at `step`: linear warm-up, then a half cosine to zero.

    `losses` are the training losses of the epochs so far, for the schedule "plateau".
    """
    warmup = round(settings.warmup * per_epoch)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "plateau":
        return plateau(losses)
    rest = max(settings.epochs * per_epoch - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / rest))


def set_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor


def _collect_offered(module: nn.Module) -> list[dict[str, Any]]:
    own = getattr(module, "optim_groups", None)
    if callable(own):
        return list(own())
    return [group for child in module.children() for group in _collect_offered(child)]


FACTOR, PATIENCE, THRESHOLD = 0.9, 5, 0.01


def plateau(losses: Iterable[float]) -> float:
    """The factor after epochs of these mean losses: times 0.9 after more than five epochs without 1 % improvement.

    An improvement is a value below (1 - 0.01) times the best so far.
    """
    best, waited, factor = math.inf, 0, 1.0
    for loss in losses:
        if loss < best * (1 - THRESHOLD):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > PATIENCE:
            factor, waited = factor * FACTOR, 0
    return factor
