"""States that are tensors, tuples or dicts of tensors, and what describes them: one function for all their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def map_spec(spec: Any, make: Callable[[Any], Any]) -> Any:
    """Apply `make` to every Spec of a state description, keeping its tuple or dict."""
    if isinstance(spec, dict):
        return {name: map_spec(part, make) for name, part in spec.items()}
    return tuple(map_spec(part, make) for part in spec) if isinstance(spec, tuple) else make(spec)


def map_state(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor of a state; None stays."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else change(state)
    if isinstance(state, dict):
        return {name: map_state(part, change) for name, part in state.items()}
    return tuple(map_state(part, change) for part in state)


def stack_states(states: Sequence[Any]) -> Any:
    """States (b, ...) side by side: (b, steps, ...)."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states), 1)
    if isinstance(first, dict):
        return {name: stack_states([state[name] for state in states]) for name in first}
    return tuple(stack_states(parts) for parts in zip(*states, strict=True))
