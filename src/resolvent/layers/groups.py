"""How an optimiser treats a layer's parameters: parameter groups as data."""

from __future__ import annotations

from typing import Any

from torch import nn


def group_parameters(layer: nn.Module, special: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Split parameters into groups: `special` maps a name, here or in the second direction `other`, to its overrides;
    all others form one default group."""
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for name, parameter in layer.named_parameters():
        key = tuple(sorted(special.get(name.removeprefix("other."), {}).items()))
        groups.setdefault(key, []).append(parameter)
    return [{"params": params, **dict(key)} for key, params in groups.items()]


def optim_overrides(names: tuple[str, ...], lr: float | None) -> dict[str, dict[str, Any]]:
    """The papers' rule for state parameters: a learning rate of their own and no weight decay."""
    own: dict[str, Any] = {"weight_decay": 0.0} if lr is None else {"lr": lr, "weight_decay": 0.0}
    return dict.fromkeys(names, own)
