"""Reversing sequences, and functions on states that are tensors, tuples or dicts of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def reverse(x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Reverse each sequence of x (b, l, ...) within its own length; padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)  # (b, l)
    return x.gather(1, index.reshape(index.shape + (1,) * (x.dim() - 2)).expand_as(x))


def map_state(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of a state; None is passed through."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else change(state)
    if isinstance(state, dict):
        return {name: map_state(part, change) for name, part in state.items()}
    return tuple(map_state(part, change) for part in state)


def stack_states(states: Sequence[Any]) -> Any:
    """Stack states (b, ...) along a new time axis: (b, steps, ...)."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states), 1)
    if isinstance(first, dict):
        return {name: stack_states([state[name] for state in states]) for name in first}
    return tuple(stack_states(parts) for parts in zip(*states, strict=True))
