"""Inputs and outputs of modules inside a model, recorded with temporary hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Calls = dict[str, list[Tensor]]
"""Module name -> one tensor per call."""


class Trace:
    """Inputs and outputs of the watched modules since the last `take`; only the first tensor of each."""

    def __init__(self) -> None:
        self.inputs: Calls = {}
        self.outputs: Calls = {}

    def take(self) -> tuple[Calls, Calls]:
        taken = self.inputs, self.outputs
        self.inputs, self.outputs = {}, {}
        return taken

    def before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found = _first((*args, *kwargs.values()), f"the input of {name!r}")
            self.inputs.setdefault(name, []).append(found)

        return hook

    def after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.outputs.setdefault(name, []).append(_first(output, f"the output of {name!r}"))

        return hook


@contextmanager
def record_trace(model: nn.Module, inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[Trace]:
    """Hooks on the named modules while the context lasts, removed also after errors."""
    trace, handles = Trace(), []
    try:
        for name in dict.fromkeys(inputs):
            module = model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(trace.before(name), with_kwargs=True))
        for name in dict.fromkeys(outputs):
            handles.append(model.get_submodule(name).register_forward_hook(trace.after(name)))
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _first(value: Any, what: str) -> Tensor:
    """A copy, because an in-place operation may follow."""
    value = next(iter(value), None) if isinstance(value, tuple | list) else value
    if not isinstance(value, Tensor):
        raise TypeError(
            f"attribution: expected {what} to be a tensor or to begin with one, got {type(value).__name__}."
        )
    return value.detach().clone()
